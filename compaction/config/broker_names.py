"""Names of Kafka 4.3.0's broker configuration that have no effect on a log at rest, by type.

They are known so that a broker's ``server.properties`` is accepted as it is, and so that a misspelt name can be told from one
that merely does not matter here. Mirrors the union of ``AbstractKafkaConfig.CONFIG_DEF`` and
``QuotaConfig.brokerQuotaConfigs``; classes and passwords count as text.
"""

from __future__ import annotations

from compaction.config.kinds import Kind

_NAMES = {
    Kind.BOOLEAN: """
        auto.create.topics.enable auto.leader.rebalance.enable controlled.shutdown.enable
        controller.quorum.auto.join.enable delete.topic.enable follower.fetch.last.tiered.offset.enable
        remote.log.storage.system.enable sasl.oauthbearer.assertion.claim.jti.include ssl.allow.dn.changes
        ssl.allow.san.changes transaction.partition.verification.enable transaction.two.phase.commit.enable
        unstable.api.versions.enable unstable.feature.versions.enable
    """,
    Kind.SHORT: """
        offsets.topic.replication.factor sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
        share.coordinator.state.topic.replication.factor transaction.state.log.replication.factor
    """,
    Kind.INT: """
        add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
        alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds
        background.threads broker.heartbeat.interval.ms broker.id broker.session.timeout.ms
        connection.failed.authentication.delay.ms controller.quorum.append.linger.ms
        controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms
        controller.quorum.fetch.max.bytes controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
        controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms controller.quota.window.num
        controller.quota.window.size.seconds controller.socket.timeout.ms default.replication.factor
        delete.records.purgatory.purge.interval.requests fetch.max.bytes fetch.purgatory.purge.interval.requests
        group.consumer.assignment.interval.ms group.consumer.heartbeat.interval.ms
        group.consumer.max.assignment.interval.ms group.consumer.max.heartbeat.interval.ms
        group.consumer.max.session.timeout.ms group.consumer.max.size group.consumer.min.assignment.interval.ms
        group.consumer.min.heartbeat.interval.ms group.consumer.min.session.timeout.ms
        group.consumer.regex.refresh.interval.ms group.consumer.session.timeout.ms group.coordinator.append.linger.ms
        group.coordinator.background.threads group.coordinator.cached.buffer.max.bytes group.coordinator.threads
        group.initial.rebalance.delay.ms group.max.session.timeout.ms group.max.size group.min.session.timeout.ms
        group.share.assignment.interval.ms group.share.delivery.count.limit group.share.heartbeat.interval.ms
        group.share.initialize.retry.interval.ms group.share.max.assignment.interval.ms
        group.share.max.delivery.count.limit group.share.max.heartbeat.interval.ms
        group.share.max.partition.max.record.locks group.share.max.record.lock.duration.ms
        group.share.max.session.timeout.ms group.share.max.share.sessions group.share.max.size
        group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
        group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
        group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
        group.share.partition.max.record.locks group.share.record.lock.duration.ms group.share.session.timeout.ms
        group.streams.assignment.interval.ms group.streams.heartbeat.interval.ms
        group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms
        group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size
        group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
        group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms group.streams.num.standby.replicas
        group.streams.session.timeout.ms initial.broker.registration.timeout.ms internal.metadata.log.segment.bytes
        internal.metadata.max.batch.size.in.bytes kafka.metrics.polling.interval.secs
        log.flush.offset.checkpoint.interval.ms log.flush.start.offset.checkpoint.interval.ms
        max.connection.creation.rate max.connections max.connections.per.ip max.incremental.fetch.session.cache.slots
        max.request.partition.size.limit metadata.log.segment.bytes metadata.max.idle.interval.ms metrics.num.samples
        node.id num.io.threads num.network.threads num.partitions num.recovery.threads.per.data.dir
        num.replica.alter.log.dirs.threads num.replica.fetchers offset.metadata.max.bytes offsets.commit.timeout.ms
        offsets.load.buffer.size offsets.retention.minutes offsets.topic.compression.codec offsets.topic.num.partitions
        producer.id.expiration.check.interval.ms producer.purgatory.purge.interval.requests queued.max.requests
        quota.window.num quota.window.size.seconds remote.fetch.max.wait.ms remote.log.manager.copier.thread.pool.size
        remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds
        remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.quota.window.num
        remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.follower.thread.pool.size
        remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
        remote.log.reader.max.pending.tasks remote.log.reader.threads replica.fetch.backoff.ms replica.fetch.max.bytes
        replica.fetch.min.bytes replica.fetch.response.max.bytes replica.fetch.wait.max.ms
        replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
        replication.quota.window.size.seconds request.timeout.ms sasl.login.connect.timeout.ms
        sasl.login.read.timeout.ms sasl.oauthbearer.assertion.claim.exp.seconds
        sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.clock.skew.seconds sasl.server.max.receive.size
        share.coordinator.append.linger.ms share.coordinator.cached.buffer.max.bytes
        share.coordinator.cold.partition.snapshot.interval.ms share.coordinator.load.buffer.size
        share.coordinator.snapshot.update.records.per.snapshot share.coordinator.state.topic.compression.codec
        share.coordinator.state.topic.num.partitions share.coordinator.state.topic.prune.interval.ms
        share.coordinator.threads share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests
        socket.listen.backlog.size socket.receive.buffer.bytes socket.request.max.bytes socket.send.buffer.bytes
        telemetry.max.bytes transaction.abort.timed.out.transaction.cleanup.interval.ms
        transaction.remove.expired.transaction.cleanup.interval.ms transaction.state.log.load.buffer.size
        transaction.state.log.num.partitions
    """,
    Kind.LONG: """
        connections.max.idle.ms connections.max.reauth.ms controller.performance.always.log.threshold.ms
        controller.performance.sample.period.ms delegation.token.expiry.check.interval.ms
        delegation.token.expiry.time.ms delegation.token.max.lifetime.ms follower.replication.throttled.rate
        internal.metadata.delete.delay.millis leader.imbalance.check.interval.seconds leader.replication.throttled.rate
        log.dir.failure.timeout.ms log.initial.task.delay.ms log.retention.check.interval.ms
        metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms metadata.log.segment.ms
        metadata.max.retention.bytes metadata.max.retention.ms metrics.sample.window.ms
        offsets.retention.check.interval.ms queued.max.request.bytes remote.list.offsets.request.timeout.ms
        remote.log.index.file.cache.total.size.bytes remote.log.index.file.cache.ttl.ms
        remote.log.manager.copy.max.bytes.per.second remote.log.manager.fetch.max.bytes.per.second
        remote.log.manager.task.interval.ms remote.log.manager.task.retry.backoff.max.ms
        remote.log.manager.task.retry.backoff.ms replica.alter.log.dirs.io.max.bytes.per.second
        replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms sasl.kerberos.min.time.before.relogin
        sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.refresh.ms
        sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
        server.max.startup.time.ms socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
        unclean.leader.election.interval.ms
    """,
    Kind.DOUBLE: """
        remote.log.manager.task.retry.jitter sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
        sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    """,
    Kind.LIST: """
        advertised.listeners config.providers controller.listener.names controller.quorum.bootstrap.servers
        controller.quorum.voters cordoned.log.dirs early.start.listeners group.consumer.assignors
        group.coordinator.rebalance.protocols group.share.assignors kafka.metrics.reporters listeners metric.reporters
        process.roles sasl.enabled.mechanisms sasl.kerberos.principal.to.local.rules sasl.oauthbearer.expected.audience
        ssl.cipher.suites ssl.enabled.protocols
    """,
    Kind.STRING: """
        alter.config.policy.class.name authorizer.class.name broker.rack client.quota.callback.class
        create.topic.policy.class.name delegation.token.secret.key group.consumer.migration.policy
        group.share.persister.class.name inter.broker.listener.name listener.security.protocol.map
        max.connections.per.ip.overrides metadata.log.dir metrics.recording.level principal.builder.class
        remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
        remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
        remote.log.storage.manager.class.name remote.log.storage.manager.class.path
        remote.log.storage.manager.impl.prefix replica.selector.class sasl.client.callback.handler.class
        sasl.jaas.config sasl.kerberos.kinit.cmd sasl.kerberos.service.name sasl.login.callback.handler.class
        sasl.login.class sasl.mechanism.controller.protocol sasl.mechanism.inter.broker.protocol
        sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.iss
        sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
        sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
        sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
        sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.expected.issuer
        sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
        sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
        sasl.oauthbearer.token.endpoint.url sasl.server.callback.handler.class security.inter.broker.protocol
        security.providers ssl.client.auth ssl.endpoint.identification.algorithm ssl.engine.factory.class
        ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location
        ssl.keystore.password ssl.keystore.type ssl.principal.mapping.rules ssl.protocol ssl.provider
        ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
        ssl.truststore.password ssl.truststore.type
    """,
}

OTHER_BROKER_NAMES: dict[str, Kind] = {name: kind for kind, names in _NAMES.items() for name in names.split()}
