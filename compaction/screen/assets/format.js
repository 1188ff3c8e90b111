"use strict";
/* The page's data and elements; formats of numbers and text. */

const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

const BYTES = 0, SEGMENTS = 1, RECORDS = 2, RECORD_BYTES = 3, TOMBSTONES = 4, KEYLESS = 5;

function escaped(text) {
  return String(text).replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}

/* A policy's name with possible line breaks. */
function named(name) {
  return escaped(name).replace(/[,+]/g, "$&<wbr>");
}

/* Letters stand for policies whose names may be long. */
function letter(number) {
  return number < 26 ? String.fromCharCode(65 + number) : `${letter(Math.floor(number / 26) - 1)}${letter(number % 26)}`;
}

function headed(name, number) {
  return `<h3><b class="letter">${letter(number)}</b> ${named(name)}</h3>`;
}

function bytes(count) {
  let size = count, unit = 0;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  while (Math.abs(size) >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
  return `${unit === 0 || Math.abs(size) >= 100 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

function count(number) {
  return Math.round(number).toLocaleString("en");
}

function short(number) {
  if (Math.abs(number) < 10000) return count(number);
  let size = number, unit = 0;
  const units = ["", " k", " M", " G", " T"];
  while (Math.abs(size) >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
  return `${Math.abs(size) >= 100 ? Math.round(size) : size.toFixed(1)}${units[unit]}`;
}

function share(part, whole) {
  if (!whole) return "0 %";
  const percent = 100 * part / whole;
  const text = percent.toFixed(1);
  if (part > 0 && text === "0.0") return "< 0.1 %";
  if (part < whole && text === "100.0") return "> 99.9 %";
  return `${text} %`;
}

function added(left, right) {
  if (!left.length) return [...right];
  return left.map((value, index) => value + (right[index] || 0));
}
