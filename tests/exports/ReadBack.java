package io.aiven.kafka.tieredstorage;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.aiven.kafka.tieredstorage.config.RemoteStorageManagerConfig;
import io.aiven.kafka.tieredstorage.storage.BytesRange;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;
import org.slf4j.LoggerFactory;

/**
 * Reads segments as a broker has the plugin do, with the metadata that the cluster has of the segments before their compaction.
 *
 * <p>Arguments: the compacted objects, those before, a directory for what is read, and settings of the plugin, name=value.
 */
public final class ReadBack {
    private ReadBack() {
    }

    public static void main(final String[] args) throws Exception {
        final Path root = Paths.get(args[0]);
        final Path before = Paths.get(args[1]);
        final Path out = Paths.get(args[2]);
        final Map<String, Object> settings = new HashMap<>();
        settings.put("storage.backend.class", "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage");
        settings.put("storage.root", root.toString());
        settings.put("fetch.chunk.cache.class", "io.aiven.kafka.tieredstorage.fetch.cache.MemoryChunkCache");
        settings.put("fetch.chunk.cache.size", "1000000");
        for (int i = 3; i < args.length; i++) {
            final int equals = args[i].indexOf('=');
            settings.put(args[i].substring(0, equals), args[i].substring(equals + 1));
        }
        final KafkaRemoteStorageManager plugin = new KafkaRemoteStorageManager(
            LoggerFactory.getLogger("read-back"), Time.SYSTEM, new RemoteStorageManagerConfig(settings));
        final List<Path> manifests;
        try (Stream<Path> found = Files.walk(before)) {
            manifests = found.filter(path -> path.toString().endsWith(".rsm-manifest")).sorted().collect(Collectors.toList());
        }
        for (final Path manifest : manifests) {
            final RemoteLogSegmentMetadata metadata = metadata(new ObjectMapper().readTree(manifest.toFile()));
            final String stem = before.relativize(manifest).toString().replace(".rsm-manifest", "");
            final Path target = out.resolve(stem);
            Files.createDirectories(target.getParent());
            final BytesRange all = BytesRange.of(0, metadata.segmentSizeInBytes() - 1);
            try (InputStream in = plugin.fetchLogSegment(metadata, all)) {
                Files.write(Paths.get(target + ".log"), in.readAllBytes());
            }
            for (final IndexType type : IndexType.values()) {
                try (InputStream in = plugin.fetchIndex(metadata, type)) {
                    Files.write(Paths.get(target + "." + type), in.readAllBytes());
                } catch (final RemoteResourceNotFoundException e) {
                    if (type != IndexType.TRANSACTION) {
                        throw e;
                    }
                }
            }
        }
    }

    private static RemoteLogSegmentMetadata metadata(final JsonNode manifest) {
        final JsonNode segment = manifest.get("remoteLogSegmentMetadata");
        final JsonNode id = segment.get("remoteLogSegmentId");
        final JsonNode partition = id.get("topicIdPartition");
        final JsonNode name = partition.get("topicPartition");
        final TopicIdPartition owner = new TopicIdPartition(
            Uuid.fromString(partition.get("topicId").asText()),
            new TopicPartition(name.get("topic").asText(), name.get("partition").asInt()));
        final Map<Integer, Long> epochs = new TreeMap<>();
        segment.get("segmentLeaderEpochs").fields()
            .forEachRemaining(entry -> epochs.put(Integer.parseInt(entry.getKey()), entry.getValue().asLong()));
        return new RemoteLogSegmentMetadata(
            new RemoteLogSegmentId(owner, Uuid.fromString(id.get("id").asText())),
            segment.get("startOffset").asLong(), segment.get("endOffset").asLong(), segment.get("maxTimestampMs").asLong(),
            segment.get("brokerId").asInt(), segment.get("eventTimestampMs").asLong(),
            manifest.get("chunkIndex").get("originalFileSize").asInt(), epochs);
    }
}
