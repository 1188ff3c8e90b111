"""Schemas of the records of Kafka's internal topics, parsed by ``compaction.dumping.generated_messages``.

A message is ``<type> <name> <versions> <first flexible version, or ->: <fields>``. A field is ``<name> <type>``, optionally
followed by ``?`` (nullable), its versions, ``#<tag>`` (``#<tag>@<versions>``: tagged in these versions) and ``=<default>``.
``[…]`` is an array, ``{…}`` a structure. Taken from Kafka 4.3.1's message definitions (``common/message/*.json`` and
``common/metadata/*.json`` in its jars).
"""

from __future__ import annotations

#: control records of KRaft by type; the name is the label that the dump tool prints
CONTROL_RECORDS = """
2 LeaderChange 0-1 0: version int16, leaderId int32, voters [{voterId int32, voterDirectoryId uuid 1+}], grantingVoters
    [{voterId int32, voterDirectoryId uuid 1+}]
3 SnapshotHeader 0 0: version int16, lastContainedLogTimestamp int64
4 SnapshotFooter 0 0: version int16
5 KRaftVersion 0 0: version int16, kRaftVersion int16
6 KRaftVoters 0 0: version int16, voters [{voterId int32, voterDirectoryId uuid, endpoints [{name string, host string, port
    uint16}], kRaftVersionFeature {minSupportedVersion int16, maxSupportedVersion int16}}]
"""

#: subscriptions and assignments in the members of a classic consumer group
CONSUMER_PROTOCOL = """
0 subscription 0-3 -: topics [string], userData bytes? =null, ownedPartitions [{topic string 1+, partitions [int32] 1+}] 1+,
    generationId int32 2+ =-1, rackId string? 3+ =null
1 assignment 0-3 -: assignedPartitions [{topic string, partitions [int32]}], userData bytes? =null
"""

#: records of ``__transaction_state``
TRANSACTION_RECORDS = """
0 key 0 -: transactionalId string
0 value 0-1 1: producerId int64, previousProducerId int64 1+ #0 =-1, nextProducerId int64 1+ #1 =-1, producerEpoch int16,
    nextProducerEpoch int16 1+ #3 =-1, transactionTimeoutMs int32, transactionStatus int8, transactionPartitions [{topic
    string, partitionIds [int32]}]?, transactionLastUpdateTimestampMs int64, transactionStartTimestampMs int64,
    clientTransactionVersion int16 1+ #2
"""

#: records of ``__consumer_offsets``
GROUP_RECORDS = """
0 key 0 -: group string, topic string, partition int32
0 value 0 -: offset int64, metadata string, commitTimestamp int64
1 key 0 -: group string, topic string, partition int32
1 value 0-4 4: offset int64, leaderEpoch int32 3+ =-1, metadata string, commitTimestamp int64, expireTimestamp int64 1 =-1,
    topicId uuid 4+ #0
2 key 0 -: group string
2 value 0-4 4: protocolType string, generation int32, protocol string?, leader string?, currentStateTimestamp int64 2+ =-1,
    members [{memberId string, groupInstanceId string? 3+ =null, clientId string, clientHost string, rebalanceTimeout int32
    1+ =-1, sessionTimeout int32, subscription bytes, assignment bytes}]
3 key 0 -: groupId string
3 value 0 0: epoch int32, metadataHash int64 #0
4 key 0 -: groupId string
4 value 0 0: topics [{topicId uuid, topicName string, numPartitions int32, partitionMetadata [{partition int32, racks
    [string]}]}]
5 key 0 -: groupId string, memberId string
5 value 0 0: instanceId string?, rackId string?, clientId string, clientHost string, subscribedTopicNames [string],
    subscribedTopicRegex string?, rebalanceTimeoutMs int32 =-1, serverAssignor string?, classicMemberMetadata
    {sessionTimeoutMs int32, supportedProtocols [{name string, metadata bytes}]}? #0
6 key 0 -: groupId string
6 value 0 0: assignmentEpoch int32, assignmentTimestamp int64 #0
7 key 0 -: groupId string, memberId string
7 value 0 0: topicPartitions [{topicId uuid, partitions [int32]}]
8 key 0 -: groupId string, memberId string
8 value 0 0: memberEpoch int32, previousMemberEpoch int32, state int8, assignedPartitions [{topicId uuid, partitions
    [int32], assignmentEpochs [int32]? #0}], partitionsPendingRevocation [{topicId uuid, partitions [int32],
    assignmentEpochs [int32]? #0}]
10 key 0 -: groupId string, memberId string
10 value 0 0: rackId string?, clientId string, clientHost string, subscribedTopicNames [string]
11 key 0 -: groupId string
11 value 0 0: epoch int32, metadataHash int64
12 key 0 -: groupId string
12 value 0 0: assignmentEpoch int32, assignmentTimestamp int64 #0
13 key 0 -: groupId string, memberId string
13 value 0 0: topicPartitions [{topicId uuid, partitions [int32]}]
14 key 0 -: groupId string, memberId string
14 value 0 0: memberEpoch int32, previousMemberEpoch int32, state int8, assignedPartitions [{topicId uuid, partitions
    [int32]}]
15 key 0 -: groupId string
15 value 0 0: initializingTopics [{topicId uuid, topicName string, partitions [int32]}], initializedTopics [{topicId uuid,
    topicName string, partitions [int32]}], deletingTopics [{topicId uuid, topicName string}]
16 key 0 -: groupId string, regularExpression string
16 value 0 0: topics [string], version int64, timestamp int64
17 key 0 -: groupId string
17 value 0 0: epoch int32, metadataHash int64, validatedTopologyEpoch int32 #0 =-1, lastAssignmentConfigs [{key string,
    value string}]? #1
19 key 0 -: groupId string, memberId string
19 value 0 0: instanceId string?, rackId string?, clientId string, clientHost string, rebalanceTimeoutMs int32 =-1,
    topologyEpoch int32, processId string, userEndpoint {host string, port uint16}? =null, clientTags [{key string, value
    string}]
20 key 0 -: groupId string
20 value 0 0: assignmentEpoch int32, assignmentTimestamp int64 #0
21 key 0 -: groupId string, memberId string
21 value 0 0: activeTasks [{subtopologyId string, partitions [int32]}], standbyTasks [{subtopologyId string, partitions
    [int32]}], warmupTasks [{subtopologyId string, partitions [int32]}]
22 key 0 -: groupId string, memberId string
22 value 0 0: memberEpoch int32, previousMemberEpoch int32, state int8, activeTasks [{subtopologyId string, partitions
    [int32], assignmentEpochs [int32]? #0}], standbyTasks [{subtopologyId string, partitions [int32], assignmentEpochs
    [int32]? #0}], warmupTasks [{subtopologyId string, partitions [int32], assignmentEpochs [int32]? #0}],
    activeTasksPendingRevocation [{subtopologyId string, partitions [int32], assignmentEpochs [int32]? #0}],
    standbyTasksPendingRevocation [{subtopologyId string, partitions [int32], assignmentEpochs [int32]? #0}],
    warmupTasksPendingRevocation [{subtopologyId string, partitions [int32], assignmentEpochs [int32]? #0}]
23 key 0 -: groupId string
23 value 0 0: epoch int32, subtopologies [{subtopologyId string, sourceTopics [string], sourceTopicRegex [string],
    stateChangelogTopics [{name string, partitions int32, replicationFactor int16, topicConfigs [{key string, value
    string}]}], repartitionSinkTopics [string], repartitionSourceTopics [{name string, partitions int32, replicationFactor
    int16, topicConfigs [{key string, value string}]}], copartitionGroups [{sourceTopics [int16], sourceTopicRegex [int16],
    repartitionSourceTopics [int16]}]}]
"""

#: records of ``__share_group_state``
SHARE_RECORDS = """
0 key 0 -: groupId string, topicId uuid, partition int32
0 value 0 0: snapshotEpoch int32, stateEpoch int32, leaderEpoch int32, startOffset int64, deliveryCompleteCount int32 #0
    =-1, createTimestamp int64, writeTimestamp int64, stateBatches [{firstOffset int64, lastOffset int64, deliveryState
    int8, deliveryCount int16}]
1 key 0 -: groupId string, topicId uuid, partition int32
1 value 0 0: snapshotEpoch int32, leaderEpoch int32, startOffset int64, deliveryCompleteCount int32 #0 =-1, stateBatches
    [{firstOffset int64, lastOffset int64, deliveryState int8, deliveryCount int16}]
"""

#: records of ``__remote_log_metadata``
REMOTE_LOG_RECORDS = """
0 RemoteLogSegmentMetadata 0 0: remoteLogSegmentId {topicIdPartition {name string, id uuid, partition int32}, id uuid},
    startOffset int64, endOffset int64, brokerId int32, maxTimestampMs int64, eventTimestampMs int64, segmentLeaderEpochs
    [{leaderEpoch int32, offset int64}], segmentSizeInBytes int32, customMetadata bytes? =null, remoteLogSegmentState int8,
    txnIndexEmpty bool #0
1 RemoteLogSegmentMetadataUpdate 0 0: remoteLogSegmentId {topicIdPartition {name string, id uuid, partition int32}, id
    uuid}, brokerId int32, eventTimestampMs int64, customMetadata bytes? =null, remoteLogSegmentState int8
2 RemotePartitionDeleteMetadata 0 0: topicIdPartition {name string, id uuid, partition int32}, brokerId int32,
    eventTimestampMs int64, remotePartitionDeleteState int8
3 RemoteLogSegmentMetadataSnapshot 0 0: segmentId uuid, startOffset int64, endOffset int64, brokerId int32, maxTimestampMs
    int64, eventTimestampMs int64, segmentLeaderEpochs [{leaderEpoch int32, offset int64}], segmentSizeInBytes int32,
    customMetadata bytes? =null, remoteLogSegmentState int8, txnIndexEmpty bool #0
"""

#: by record, the fields in the ``toString`` of its class
REMOTE_LOG_TEXTS = {
    "RemoteLogSegmentMetadata": "remoteLogSegmentId startOffset endOffset brokerId maxTimestampMs eventTimestampMs"
    " segmentLeaderEpochs segmentSizeInBytes customMetadata state txnIdxEmpty",
    "RemoteLogSegmentMetadataUpdate": "remoteLogSegmentId customMetadata state eventTimestampMs brokerId",
    "RemotePartitionDeleteMetadata": "topicPartition state eventTimestampMs brokerId",
    "RemoteLogSegmentMetadataSnapshot": "segmentId startOffset endOffset maxTimestampMs segmentLeaderEpochs"
    " segmentSizeInBytes customMetadata state txnIdxEmpty",
}
SEGMENT_STATES = ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED")
PARTITION_STATES = ("DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED")

#: records of ``__cluster_metadata``
METADATA_RECORDS = """
0 REGISTER_BROKER_RECORD 0-4 0: brokerId int32, isMigratingZkBroker bool 2+, incarnationId uuid, brokerEpoch int64,
    endPoints [{name string, host string, port uint16, securityProtocol int16}], features [{name string, minSupportedVersion
    int16, maxSupportedVersion int16}], rack string?, fenced bool =true, inControlledShutdown bool 1+, logDirs [uuid] 3+ #0,
    cordonedLogDirs [uuid]? 4+ #1 =null
1 UNREGISTER_BROKER_RECORD 0 0: brokerId int32, brokerEpoch int64
2 TOPIC_RECORD 0 0: name string, topicId uuid
3 PARTITION_RECORD 0-2 0: partitionId int32 =-1, topicId uuid, replicas [int32], isr [int32], removingReplicas [int32],
    addingReplicas [int32], leader int32 =-1, leaderRecoveryState int8 #0, leaderEpoch int32 =-1, partitionEpoch int32 =-1,
    directories [uuid] 1+, eligibleLeaderReplicas [int32]? 2+ #1 =null, lastKnownElr [int32]? 2+ #2 =null
4 CONFIG_RECORD 0 0: resourceType int8, resourceName string, name string, value string?
5 PARTITION_CHANGE_RECORD 0-2 0: partitionId int32 =-1, topicId uuid, isr [int32]? #0 =null, leader int32 #1 =-2, replicas
    [int32]? #2 =null, removingReplicas [int32]? #3 =null, addingReplicas [int32]? #4 =null, leaderRecoveryState int8 #5
    =-1, directories [uuid]? 1+ #8 =null, eligibleLeaderReplicas [int32]? 2+ #6 =null, lastKnownElr [int32]? 2+ #7 =null
7 FENCE_BROKER_RECORD 0 0: id int32, epoch int64
8 UNFENCE_BROKER_RECORD 0 0: id int32, epoch int64
9 REMOVE_TOPIC_RECORD 0 0: topicId uuid
10 DELEGATION_TOKEN_RECORD 0 0: owner string, requester string, renewers [string], issueTimestamp int64, maxTimestamp int64,
    expirationTimestamp int64, tokenId string
11 USER_SCRAM_CREDENTIAL_RECORD 0 0: name string, mechanism int8, salt bytes, storedKey bytes, serverKey bytes, iterations
    int32
12 FEATURE_LEVEL_RECORD 0 0: name string, featureLevel int16
14 CLIENT_QUOTA_RECORD 0 0: entity [{entityType string, entityName string?}], key string, value float64, remove bool
15 PRODUCER_IDS_RECORD 0 0: brokerId int32, brokerEpoch int64 =-1, nextProducerId int64
17 BROKER_REGISTRATION_CHANGE_RECORD 0-3 0: brokerId int32, brokerEpoch int64, fenced int8 #0, inControlledShutdown int8 1+
    #1, logDirs [uuid] 2+ #2, cordonedLogDirs [uuid]? 3+ #3 =null
18 ACCESS_CONTROL_ENTRY_RECORD 0 0: id uuid, resourceType int8, resourceName string, patternType int8, principal string,
    host string, operation int8, permissionType int8
19 REMOVE_ACCESS_CONTROL_ENTRY_RECORD 0 0: id uuid
20 NO_OP_RECORD 0 0:
21 ZK_MIGRATION_STATE_RECORD 0 0: zkMigrationState int8
22 REMOVE_USER_SCRAM_CREDENTIAL_RECORD 0 0: name string, mechanism int8
23 BEGIN_TRANSACTION_RECORD 0 0: name string? #0 =null
24 END_TRANSACTION_RECORD 0 0:
25 ABORT_TRANSACTION_RECORD 0 0: reason string? #0 =null
26 REMOVE_DELEGATION_TOKEN_RECORD 0 0: tokenId string
27 REGISTER_CONTROLLER_RECORD 0 0: controllerId int32, incarnationId uuid, zkMigrationReady bool, endPoints [{name string,
    host string, port uint16, securityProtocol int16}], features [{name string, minSupportedVersion int16,
    maxSupportedVersion int16}]
28 CLEAR_ELR_RECORD 0 0: topicName string
"""
