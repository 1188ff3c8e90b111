import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.message.LeaderChangeMessage;
import org.apache.kafka.common.metadata.AbortTransactionRecord;
import org.apache.kafka.common.metadata.BeginTransactionRecord;
import org.apache.kafka.common.metadata.ConfigRecord;
import org.apache.kafka.common.metadata.EndTransactionRecord;
import org.apache.kafka.common.metadata.NoOpRecord;
import org.apache.kafka.common.metadata.RemoveTopicRecord;
import org.apache.kafka.common.metadata.TopicRecord;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.ByteBufferOutputStream;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.metadata.properties.MetaProperties;
import org.apache.kafka.metadata.properties.MetaPropertiesVersion;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.storage.internals.checkpoint.*;
import org.apache.kafka.storage.internals.log.*;

import java.io.File;
import java.io.OutputStream;
import java.io.StringReader;
import java.io.StringWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;

/** Writes what Kafka's own classes write and read, as JSON, into the directory that is the only argument. */
public class MakeFormats {
    static final long T = 1_700_000_000_000L;
    static final Header[] NO_HEADERS = {};
    static final ObjectMapper JSON = new ObjectMapper().enable(SerializationFeature.INDENT_OUTPUT)
        .enable(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS);
    static Path scratch;

    record Row(long offset, long timestamp, byte[] key, byte[] value, Header[] headers) { }

    public static void main(String[] args) throws Exception {
        Path out = Path.of(args[0]);
        scratch = Files.createTempDirectory("formats");
        JSON.writeValue(out.resolve("batches.json").toFile(), batches());
        JSON.writeValue(out.resolve("codecs.json").toFile(), codecs());
        JSON.writeValue(out.resolve("files.json").toFile(), files());
        JSON.writeValue(out.resolve("metadata.json").toFile(), metadata());
    }

    // ---- batches of every magic

    static List<Map<String, Object>> batches() throws Exception {
        List<Map<String, Object>> cases = new ArrayList<>();
        for (CompressionType codec : CompressionType.values()) {
            cases.add(batch("v2-" + codec.name + "-create-time", build(2, codec, TimestampType.CREATE_TIME, 1000, rows(true))));
            cases.add(batch("v2-" + codec.name + "-append-time", build(2, codec, TimestampType.LOG_APPEND_TIME, 1000, rows(true))));
        }
        for (int magic : new int[] {0, 1})
            for (CompressionType codec : List.of(CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4)) {
                String name = "v" + magic + "-" + codec.name;
                cases.add(batch(name + "-create-time", build(magic, codec, TimestampType.CREATE_TIME, 1000, rows(false))));
                if (magic == 1)
                    cases.add(batch(name + "-append-time", build(magic, codec, TimestampType.LOG_APPEND_TIME, 1000, rows(false))));
            }
        cases.add(batch("v1-gzip-base-before-first", build(1, CompressionType.GZIP, TimestampType.CREATE_TIME, 990, rows(false))));
        cases.add(batch("v1-gzip-at-offset-0", build(1, CompressionType.GZIP, TimestampType.CREATE_TIME, 0,
            List.of(new Row(0, T, bytes("only"), bytes("one"), NO_HEADERS)))));
        cases.add(batch("v0-in-v1-gzip", nested(1, 0)));
        cases.add(batch("v1-in-v0-gzip", nested(0, 1)));
        cases.add(batch("v2-idempotent", producer(false, 0, -1)));
        cases.add(batch("v2-transactional-gap-and-horizon", producer(true, 2147483646, T + 86_400_000)));
        cases.add(batch("v2-empty", empty(false)));
        cases.add(batch("v2-empty-control-append-time", empty(true)));
        for (ControlRecordType type : List.of(ControlRecordType.COMMIT, ControlRecordType.ABORT))
            cases.add(batch("v2-marker-" + type.name().toLowerCase(Locale.ROOT), MemoryRecords.withEndTransactionMarker(
                77, T, 5, 4242, (short) 3, new EndTransactionMarker(type, 11))));
        return cases;
    }

    static List<Row> rows(boolean headers) {
        Header[] some = {new RecordHeader("trace", bytes("abc")), new RecordHeader("null", (byte[]) null),
            new RecordHeader("empty", new byte[0]), new RecordHeader("schl\u00fcssel", bytes("\u00fc"))};
        return List.of(
            new Row(1000, T + 5, bytes("key-a"), bytes("value-a-1"), headers ? some : NO_HEADERS),
            new Row(1001, T + 1, bytes("key-b"), null, NO_HEADERS),
            new Row(1003, T + 9, null, bytes("without key"), NO_HEADERS),
            new Row(1004, T + 2, new byte[0], new byte[0], NO_HEADERS),
            new Row(1009, T + 7, bytes("key-a"), text(600), NO_HEADERS));
    }

    static MemoryRecords build(int magic, CompressionType codec, TimestampType type, long base, List<Row> rows) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(256), (byte) magic, Compression.of(codec).build(),
            type, base, type == TimestampType.LOG_APPEND_TIME ? T + 1234 : -1, -1, (short) -1, -1, false, 7);
        for (Row row : rows)
            builder.appendWithOffset(row.offset, magic == 0 ? -1 : row.timestamp, row.key, row.value, row.headers);
        return builder.build();
    }

    static MemoryRecords nested(int magic, int innerMagic) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(256), (byte) magic, Compression.gzip().build(),
            TimestampType.CREATE_TIME, 500);
        for (int i = 0; i < 3; i++)
            builder.appendUncheckedWithOffset(500 + i, LegacyRecord.create((byte) innerMagic, T + i, bytes("k" + i), bytes("v" + i)));
        return builder.build();
    }

    static MemoryRecords producer(boolean transactional, int sequence, long horizon) {
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(new ByteBufferOutputStream(256), (byte) 2, Compression.NONE,
            TimestampType.CREATE_TIME, 1000, -1, 4242, (short) 3, sequence, transactional, false, 9, 256, horizon);
        for (Row row : rows(false))
            builder.appendWithOffset(row.offset, row.timestamp, row.key, row.value, row.headers);
        if (transactional)
            builder.overrideLastOffset(1011);
        return builder.build();
    }

    static MemoryRecords empty(boolean control) {
        ByteBuffer buffer = ByteBuffer.allocate(DefaultRecordBatch.RECORD_BATCH_OVERHEAD);
        DefaultRecordBatch.writeEmptyHeader(buffer, (byte) 2, 4242, (short) 3, 17, 2000, 2009, 5,
            control ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME, T, true, control);
        buffer.flip();
        return MemoryRecords.readableRecords(buffer);
    }

    static Map<String, Object> batch(String name, MemoryRecords records) {
        Map<String, Object> result = new TreeMap<>();
        result.put("name", name);
        result.put("bytes", base64(records.buffer()));
        List<Object> batches = new ArrayList<>();
        for (MutableRecordBatch batch : records.batches())
            batches.add(describe(batch));
        result.put("batches", batches);
        result.put("all_kept", filtered(records, Set.of()));
        result.put("first_two_dropped", filtered(records, Set.of(1000L, 1001L, 500L, 501L)));
        return result;
    }

    static Map<String, Object> describe(MutableRecordBatch batch) {
        Map<String, Object> fields = new TreeMap<>();
        fields.put("magic", batch.magic());
        fields.put("size", batch.sizeInBytes());
        fields.put("last_offset", batch.lastOffset());
        fields.put("max_timestamp", batch.maxTimestamp());
        fields.put("codec", (int) batch.compressionType().id);
        fields.put("append_time", batch.timestampType() == TimestampType.LOG_APPEND_TIME);
        fields.put("valid", batch.isValid());
        if (batch.magic() == 2) {
            fields.put("base_offset", batch.baseOffset());
            fields.put("leader_epoch", batch.partitionLeaderEpoch());
            fields.put("producer_id", batch.producerId());
            fields.put("producer_epoch", batch.producerEpoch());
            fields.put("base_sequence", batch.baseSequence());
            fields.put("last_sequence", batch.lastSequence());
            fields.put("count", batch.countOrNull());
            fields.put("transactional", batch.isTransactional());
            fields.put("control", batch.isControlBatch());
            fields.put("delete_horizon", batch.deleteHorizonMs().isPresent() ? batch.deleteHorizonMs().getAsLong() : null);
        }
        List<Object> records = new ArrayList<>();
        for (org.apache.kafka.common.record.internal.Record record : batch) {
            Map<String, Object> row = new TreeMap<>();
            row.put("offset", record.offset());
            row.put("timestamp", record.timestamp());
            row.put("sequence", record.sequence());
            row.put("key", base64(record.key()));
            row.put("value", base64(record.value()));
            List<Object> headers = new ArrayList<>();
            for (Header header : record.headers())
                headers.add(Arrays.asList(header.key(), base64(header.value() == null ? null : ByteBuffer.wrap(header.value()))));
            row.put("headers", headers);
            records.add(row);
        }
        fields.put("records", records);
        return fields;
    }

    static String filtered(MemoryRecords records, Set<Long> dropped) {
        MemoryRecords.RecordFilter filter = new MemoryRecords.RecordFilter(T + 50, 1000) {
            @Override
            protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                return new BatchRetentionResult(BatchRetention.DELETE_EMPTY, false);
            }

            @Override
            protected boolean shouldRetainRecord(RecordBatch batch, org.apache.kafka.common.record.internal.Record record) {
                return !dropped.contains(record.offset());
            }
        };
        MemoryRecords.FilterResult result = records.filterTo(filter, ByteBuffer.allocate(64 * 1024), BufferSupplier.NO_CACHING);
        return base64(result.outputBuffer().duplicate().flip());
    }

    // ---- codecs

    static List<Map<String, Object>> codecs() throws Exception {
        List<Map<String, Object>> cases = new ArrayList<>();
        for (CompressionType codec : CompressionType.values())
            for (int magic : codec == CompressionType.LZ4 ? new int[] {0, 1, 2} : new int[] {2})
                for (int size : new int[] {1, 700, 40_000, 70_000}) {
                    if (codec == CompressionType.NONE)
                        continue;
                    ByteBufferOutputStream sink = new ByteBufferOutputStream(1024);
                    try (OutputStream stream = Compression.of(codec).build().wrapForOutput(sink, (byte) magic)) {
                        stream.write(text(size));
                        stream.write(noise(300));
                    }
                    cases.add(new TreeMap<>(Map.of("codec", (int) codec.id, "magic", magic, "text", size, "noise", 300,
                        "bytes", base64(sink.buffer().flip()))));
                }
        return cases;
    }

    /** Words in pseudo-random order: compresses well, and any language can make it again. */
    static byte[] text(int size) {
        String[] words = {"segment ", "offset ", "tombstone-and-marker ", "key "};
        StringBuilder text = new StringBuilder();
        long state = 1;
        while (text.length() < size) {
            state = (state * 1103515245L + 12345L) & 0x7fffffffL;
            text.append(words[(int) (state >> 16) & 3].repeat(1 + (int) (state >> 20) % 24));
        }
        return text.substring(0, size).getBytes(StandardCharsets.US_ASCII);
    }

    static byte[] noise(int size) {
        byte[] noise = new byte[size];
        long state = 7;
        for (int i = 0; i < size; i++) {
            state = (state * 1103515245L + 12345L) & 0x7fffffffL;
            noise[i] = (byte) (state >> 16);
        }
        return noise;
    }

    // ---- files beside the log

    static Map<String, Object> files() throws Exception {
        Map<String, Object> files = new TreeMap<>();
        files.put("offset_index", offsetIndex());
        files.put("time_index", timeIndex());
        files.put("txn_index", txnIndex());
        files.put("producer_snapshot", producerSnapshot());
        files.put("offset_checkpoint", offsetCheckpoint());
        files.put("leader_epochs", leaderEpochs());
        files.put("partition_metadata", partitionMetadata());
        files.put("clean_shutdown", cleanShutdown());
        files.put("meta_properties", metaProperties());
        files.put("properties", properties());
        return files;
    }

    static Map<String, Object> offsetIndex() throws Exception {
        long base = 5_000_000_000L;
        File file = scratch.resolve("00000000005000000000.index").toFile();
        OffsetIndex index = new OffsetIndex(file, base, 1024);
        long[][] rows = {{base + 17, 4200}, {base + 40, 8500}, {base + 2_000_000_000L, 2_000_000_000L}};
        for (long[] row : rows)
            index.append(row[0], (int) row[1]);
        index.flush();
        String preallocated = base64(ByteBuffer.wrap(Files.readAllBytes(file.toPath())));
        index.close();
        return Map.of("base_offset", base, "rows", rows, "preallocated", preallocated, "closed", fileBase64(file));
    }

    static Map<String, Object> timeIndex() throws Exception {
        long base = 5_000_000_000L;
        File file = scratch.resolve("00000000005000000000.timeindex").toFile();
        TimeIndex index = new TimeIndex(file, base, 1200);
        long[][] rows = {{0, base}, {T, base + 17}, {T + 1, base + 17}, {T + 500, base + 2_000_000_000L}};
        for (long[] row : rows)
            index.maybeAppend(row[0], row[1]);
        index.flush();
        String preallocated = base64(ByteBuffer.wrap(Files.readAllBytes(file.toPath())));
        index.close();
        return Map.of("base_offset", base, "rows", rows, "preallocated", preallocated, "closed", fileBase64(file));
    }

    static Map<String, Object> txnIndex() throws Exception {
        File file = scratch.resolve("00000000000000000100.txnindex").toFile();
        TransactionIndex index = new TransactionIndex(100, file);
        long[][] rows = {{4242, 90, 120, 95}, {1L << 40, 130, 140, 130}};
        for (long[] row : rows)
            index.append(new AbortedTxn(row[0], row[1], row[2], row[3]));
        index.flush();
        index.close();
        return Map.of("base_offset", 100, "rows", rows, "closed", fileBase64(file));
    }

    static Map<String, Object> producerSnapshot() throws Exception {
        File file = scratch.resolve("00000000000000000100.snapshot").toFile();
        Map<Long, ProducerStateEntry> producers = new LinkedHashMap<>();
        for (long id : new long[] {4242, 7, 1L << 40})
            producers.put(id, new ProducerStateEntry(id, (short) (id % 100), 3, T + id % 1000, id == 7 ? OptionalLong.of(88) : OptionalLong.empty()));
        ProducerStateManager.writeSnapshot(file, producers, true);
        // remembered batches can only be given by reading them back
        byte[] written = Files.readAllBytes(file.toPath());
        ByteBuffer patch = ByteBuffer.wrap(written);
        patch.putInt(10 + 10, 41).putLong(10 + 14, 99).putInt(10 + 22, 4);
        patch.putInt(2, (int) org.apache.kafka.common.utils.Crc32C.compute(written, 6, written.length - 6));
        Files.write(file.toPath(), written);
        Map<Long, ProducerStateEntry> again = new LinkedHashMap<>();
        List<long[]> rows = new ArrayList<>();
        for (ProducerStateEntry entry : ProducerStateManager.readSnapshot(file)) {
            again.put(entry.producerId(), entry);
            BatchMetadata last = entry.batchMetadata().stream().findFirst().orElse(null);
            rows.add(new long[] {entry.producerId(), entry.producerEpoch(), last == null ? -1 : last.lastSeq(),
                last == null ? -1 : last.lastOffset(), last == null ? 0 : last.offsetDelta(), entry.lastTimestamp(), entry.coordinatorEpoch(),
                entry.currentTxnFirstOffset().orElse(-1)});
        }
        Files.delete(file.toPath());
        ProducerStateManager.writeSnapshot(file, again, true);
        return Map.of("rows", rows, "closed", fileBase64(file));
    }

    static Map<String, Object> offsetCheckpoint() throws Exception {
        File file = scratch.resolve("cleaner-offset-checkpoint").toFile();
        OffsetCheckpointFile checkpoint = new OffsetCheckpointFile(file, null);
        String empty = Files.readString(file.toPath());
        Map<TopicPartition, Long> offsets = new LinkedHashMap<>();
        offsets.put(new TopicPartition("orders", 0), 12L);
        offsets.put(new TopicPartition("__consumer_offsets", 49), 9_000_000_000L);
        offsets.put(new TopicPartition("a.b_c-d", 2), 0L);
        checkpoint.write(offsets);
        List<Object> rows = new ArrayList<>();
        offsets.forEach((tp, offset) -> rows.add(List.of(tp.topic(), tp.partition(), offset)));
        return Map.of("rows", rows, "text", Files.readString(file.toPath()), "created", empty);
    }

    static Map<String, Object> leaderEpochs() throws Exception {
        File file = scratch.resolve("orders-0").toFile();
        file.mkdir();
        file = LeaderEpochCheckpointFile.newFile(file);
        LeaderEpochCheckpointFile checkpoint = new LeaderEpochCheckpointFile(file, new LogDirFailureChannel(1));
        checkpoint.write(List.of(new EpochEntry(0, 0), new EpochEntry(3, 9_000_000_000L)));
        return Map.of("rows", new long[][] {{0, 0}, {3, 9_000_000_000L}}, "text", Files.readString(file.toPath()));
    }

    static Map<String, Object> partitionMetadata() throws Exception {
        File file = PartitionMetadataFile.newFile(scratch.toFile());
        PartitionMetadataFile metadata = new PartitionMetadataFile(file, new LogDirFailureChannel(1));
        Uuid id = new Uuid(0x123456789abcdef0L, 0xfedcba9876543210L);
        metadata.record(id);
        metadata.maybeFlush();
        return Map.of("topic_id", id.toString(), "text", Files.readString(file.toPath()));
    }

    static Map<String, Object> cleanShutdown() throws Exception {
        CleanShutdownFileHandler handler = new CleanShutdownFileHandler(scratch.toString());
        handler.write(9_000_000_000L);
        return Map.of("broker_epoch", 9_000_000_000L, "text",
            Files.readString(scratch.resolve(CleanShutdownFileHandler.CLEAN_SHUTDOWN_FILE_NAME)));
    }

    static Map<String, Object> metaProperties() throws Exception {
        MetaProperties meta = new MetaProperties.Builder().setVersion(MetaPropertiesVersion.V1).setClusterId("b2ZmbGluZS1jbGVhbmVyLQ")
            .setNodeId(12).setDirectoryId(new Uuid(1, 2)).build();
        StringWriter text = new StringWriter();
        meta.toProperties().store(text, "");
        // the second line is the time of writing
        String fixed = text.toString().replaceFirst("#[A-Z][^\n]*", "#Thu Jan 01 00:00:00 UTC 1970");
        return Map.of("cluster_id", "b2ZmbGluZS1jbGVhbmVyLQ", "node_id", 12, "directory_id", new Uuid(1, 2).toString(), "text", fixed);
    }

    static List<Object> properties() throws Exception {
        String[] texts = {
            "a=1\nb = 2\r\n  c : 3\rd 4\n\te\\=f = \\=5  \n! no\n # no\n\ng\n",
            "long = one, \\\n   two,\\\n\n after\\\\\\\n x = \\u00e9\\t\\q\n",
            "twice=1\ntwice=2\nlast=end\\",
            "\\\n# comment after an empty continuation\nk=v\\\n# no comment\n",
            "= no key\n: neither\nkey\\ with\\ blanks==x\nslash\\\\=y\n",
            "tab\\tkey=\\\\\\\\\nblank\u00a0space = \u00fc\nform\ffeed\n",
        };
        List<Object> cases = new ArrayList<>();
        for (String text : texts) {
            Properties parsed = new Properties();
            parsed.load(new StringReader(text));
            cases.add(Map.of("text", text, "values", new TreeMap<>(parsed)));
        }
        return cases;
    }

    // ---- the metadata log

    static Map<String, Object> metadata() throws Exception {
        Uuid kept = new Uuid(1, 1);
        Uuid gone = new Uuid(2, 2);
        ByteBuffer leader = ByteBuffer.allocate(512);
        MemoryRecords control = MemoryRecords.withLeaderChangeMessage(0, T, 1, leader, new LeaderChangeMessage().setLeaderId(1));
        MemoryRecords first = metadataBatch(1,
            new TopicRecord().setName("kept").setTopicId(kept),
            new TopicRecord().setName("gone").setTopicId(gone),
            new NoOpRecord(),
            config((byte) 2, "kept", "cleanup.policy", "compact"),
            config((byte) 2, "kept", "retention.ms", "1"),
            config((byte) 2, "gone", "cleanup.policy", "delete"),
            config((byte) 4, "", "log.cleaner.threads", "2"),
            config((byte) 4, "1", "log.cleaner.io.buffer.size", "65536"),
            config((byte) 16, "metrics", "interval.ms", "5"));
        MemoryRecords second = metadataBatch(10,
            config((byte) 2, "kept", "retention.ms", null),
            config((byte) 2, "kept", "segment.bytes", "1048576"),
            new RemoveTopicRecord().setTopicId(gone),
            new BeginTransactionRecord().setName("aborted"),
            config((byte) 2, "kept", "segment.bytes", "1"),
            new AbortTransactionRecord().setReason("test"),
            new BeginTransactionRecord(),
            config((byte) 2, "kept", "min.compaction.lag.ms", "77"),
            new EndTransactionRecord());
        return Map.of("segment", List.of(base64(control.buffer()), base64(first.buffer()), base64(second.buffer())),
            "topic_ids", Map.of("kept", kept.toString()), "removed", gone.toString(),
            "topics", Map.of("kept", Map.of("cleanup.policy", "compact", "segment.bytes", "1048576", "min.compaction.lag.ms", "77")),
            "brokers", Map.of("", Map.of("log.cleaner.threads", "2"), "1", Map.of("log.cleaner.io.buffer.size", "65536")));
    }

    static ConfigRecord config(byte type, String resource, String name, String value) {
        return new ConfigRecord().setResourceType(type).setResourceName(resource).setName(name).setValue(value);
    }

    static MemoryRecords metadataBatch(long base, ApiMessage... messages) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(256), (byte) 2, Compression.NONE,
            TimestampType.CREATE_TIME, base);
        for (ApiMessage message : messages) {
            ApiMessageAndVersion versioned = new ApiMessageAndVersion(message, (short) 0);
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer value = ByteBuffer.allocate(MetadataRecordSerde.INSTANCE.recordSize(versioned, cache));
            MetadataRecordSerde.INSTANCE.write(versioned, cache, new ByteBufferAccessor(value));
            builder.append(T, (byte[]) null, value.array());
        }
        return builder.build();
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String fileBase64(File file) throws Exception {
        return base64(ByteBuffer.wrap(Files.readAllBytes(file.toPath())));
    }

    static String base64(java.nio.Buffer any) {
        if (any == null)
            return null;
        ByteBuffer copy = ((ByteBuffer) any).duplicate();
        byte[] bytes = new byte[copy.remaining()];
        copy.get(bytes);
        return Base64.getEncoder().encodeToString(bytes);
    }
}
