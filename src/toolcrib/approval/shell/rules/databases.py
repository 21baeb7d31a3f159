"""Databases through their own command lines."""

from __future__ import annotations

import re

from toolcrib.approval.shell.rules.base import CommandCall, DangerClass, Rule, after_sub, operands_at_least

DANGERS = (
    DangerClass(
        "sql",
        "destructive SQL",
        "this database",
        r"(?i)\b(?:drop\s+(?:table|database|schema|user|view|index)|truncate\s+(?:table\s+)?\w|"
        r"delete\s+from\s+\w+\s*(?:;|'|\"|$))",
        "psql -c 'DROP TABLE users'",
    ),
    DangerClass(
        "database",
        "destructive database command",
        "this database",
        r"\b(?:dropdb|dropuser)\b|\bredis-cli\b.*\bflush|\bpg_restore\b.*--clean",
        "dropdb prod",
    ),
)

REDIS_ALONE = re.compile(r"(?i)^(?:flushall|flushdb|shutdown|swapdb|replicaof|slaveof|failover|debug|migrate)$")
REDIS_IN_SCRIPT = re.compile(
    r"(?i)flushall|flushdb|shutdown|config['\", ]+set|script['\", ]+flush|slaveof|replicaof|os\.execute"
)
MONGO = re.compile(
    r"dropDatabase|\.drop\s*\(|deleteMany\s*\(\s*(?:\{\s*\})?\s*\)|"
    r"\.remove\s*\(\s*(?:\{\s*\})?\s*\)|dropUser|shutdownServer|dropAllUsers|\.dropIndex|"
    r"deleteMany\s*\(|rs\.(?:remove|stepDown|reconfig)|dropCollection|updateMany\s*\(\s*\{\s*\}"
)


def redis_destroys(call: CommandCall) -> bool:
    words = [each.text for each in call.arguments.operands]
    text = call.stdin.text if call.stdin is not None and call.stdin.text is not None else ""
    lines = [words, *[line.split() for line in text.splitlines()[:200]]]
    return any(_redis_line(line) for line in lines if line)


def _redis_line(words: list[str]) -> bool:
    if REDIS_ALONE.match(words[0]):
        return True
    if words[0].lower() in ("eval", "evalsha", "fcall", "multi"):
        return bool(REDIS_IN_SCRIPT.search(" ".join(words[1:])))
    if words[0].lower() in ("config", "cluster", "acl", "script", "module", "client") and len(words) > 1:
        return words[1].lower() in (
            "set",
            "rewrite",
            "resetstat",
            "reset",
            "forget",
            "failover",
            "deluser",
            "setuser",
            "flush",
            "kill",
            "load",
            "unload",
        )
    return words[0].lower() in ("del", "unlink") and any("*" in word or "\ufdd0" in word for word in words[1:])


def mongo_destroys(call: CommandCall) -> bool:
    texts = [each.text for each in call.arguments.values("--eval")]
    if call.stdin is not None and call.stdin.text is not None:
        texts.append(call.stdin.text)
    return any(MONGO.search(text) for text in texts)


def migrates_back(call: CommandCall) -> bool:
    texts = [word.text for word in call.words]
    return (
        any(
            re.fullmatch(
                r"(?:db:)?(?:drop|reset|rollback|purge|schema:load|structure:load|wipe|fresh|refresh|"
                r"migrate:(?:reset|fresh|refresh|rollback|undo(?::all)?)|flush|reset_db|sqlflush_|"
                r"schema:drop|database:drop|doctrine:schema:drop|doctrine:database:drop|db:drop(?::all|"
                r":_unsafe)?|db:reset|db:seed:undo(?::all)?|db:wipe|db:migrate:reset|db:truncate_all|"
                r"db:setup|ecto\.(?:drop|reset|rollback))",
                text,
            )
            for text in texts
        )
        or ("migrate" in texts and "zero" in texts)
        or ("migrate" in texts and any(text in ("reset", "down") for text in texts) and "--create-only" not in texts)
        or (
            "db" in texts
            and any(text in ("reset", "push") and ("--force-reset" in texts or text == "reset") for text in texts)
        )
    )


def restores_over(call: CommandCall) -> bool:
    return call.arguments.has("-c", "--clean", "--create", "-C", "--if-exists")


RULES = (
    Rule(
        "dropdb dropuser",
        reason="drops a database or a user",
        where=operands_at_least(0),
        key="database",
        yes="dropdb prod",
        no="dropdb --help",
    ),
    Rule(
        "pg_restore",
        reason="replaces a database",
        where=restores_over,
        key="database",
        yes="pg_restore --clean --dbname=prod x",
        no="pg_restore -l x",
    ),
    Rule(
        "pg_resetwal pg_rewind initdb pg_dropcluster pg_upgrade vacuumdb_",
        reason="rebuilds database files",
        where=lambda call: not any(word.text in ("-n", "--dry-run", "-V", "-c", "--check") for word in call.words),
        key="database",
        yes="pg_resetwal -f x",
        no="pg_resetwal -n x",
    ),
    Rule(
        "mysqladmin mariadb-admin",
        reason="drops a database or stops the server",
        where=after_sub(
            0, lambda text: text in ("drop", "shutdown", "kill", "flush-privileges_", "password", "reload_")
        ),
        key="database",
        yes="mysqladmin drop prod",
        no="mysqladmin status",
    ),
    Rule(
        "mysql_secure_installation mysql_install_db",
        reason="changes the database server",
        key="database",
        yes="mysql_install_db",
        no="mysql_install_db --help",
    ),
    Rule(
        "redis-cli valkey-cli keydb-cli",
        reason="empties or stops the database",
        where=redis_destroys,
        key="database",
        yes="redis-cli -n 1 FLUSHALL",
        no="redis-cli GET x",
    ),
    Rule(
        "mongosh mongo",
        reason="drops data",
        where=mongo_destroys,
        key="database",
        yes="mongosh app --eval 'db.dropDatabase()'",
        no="mongosh --eval 'db.stats()'",
    ),
    Rule(
        "mongorestore",
        reason="replaces a database",
        flags="--drop",
        unless="--dryRun",
        key="database",
        yes="mongorestore --drop x",
        no="mongorestore x",
    ),
    Rule(
        "mongod mysqld postgres redis-server",
        reason="stops or repairs the database server",
        flags="--shutdown --repair --initialize --skip-grant-tables --initialize-insecure",
        key="database",
        yes="mongod --shutdown",
        no="mongod --version",
    ),
    Rule(
        "influx",
        "bucket|delete|org|user|database",
        reason="deletes data",
        where=after_sub(0, lambda text: text == "delete"),
        key="database",
        yes="influx bucket delete -n x",
        no="influx bucket list",
    ),
    Rule(
        "sqlite3",
        reason="replaces a database",
        where=after_sub(1, lambda text: re.match(r"\s*\.(?:restore|drop)", text)),
        key="database",
        yes="sqlite3 a.db '.restore b'",
        no="sqlite3 a.db .tables",
    ),
    Rule(
        "rails rake bin/rails artisan php python python3 manage.py prisma npx sequelize "
        "sequelize-cli knex typeorm drizzle-kit mix bundle flask symfony console django-admin yarn "
        "npm pnpm",
        reason="drops or resets a database",
        where=migrates_back,
        key="database",
        yes="rails db:drop",
        no="rails db:migrate",
    ),
    Rule(
        "alembic flask",
        "downgrade|db",
        reason="rolls back a database",
        where=after_sub(0, lambda text: text == "downgrade"),
        unless="--sql",
        key="database",
        yes="alembic downgrade base",
        no="alembic history",
    ),
    Rule(
        "flyway liquibase goose dbmate migrate sqlx atlas",
        reason="drops or rolls back a database",
        where=after_sub(
            0,
            lambda text: re.fullmatch(
                r"clean|undo|dropAll|drop-all|rollback|drop|down|down-to|reset|revert|rollback-count|"
                r"rollbackCount|rollback-to-date",
                text,
            ),
        ),
        key="database",
        yes="flyway clean",
        no="flyway info",
    ),
    Rule(
        "prisma",
        "db push",
        reason="drops data",
        flags="--accept-data-loss --force-reset",
        key="database",
        yes="prisma db push --accept-data-loss",
        no="prisma db pull",
    ),
    Rule(
        "cqlsh nodetool",
        reason="removes data from the cluster",
        where=after_sub(
            0,
            lambda text: (
                text
                in (
                    "drain",
                    "decommission",
                    "removenode",
                    "assassinate",
                    "clearsnapshot",
                    "stopdaemon",
                    "truncatehints",
                    "resetlocalschema",
                )
            ),
        ),
        key="database",
        yes="nodetool decommission",
        no="nodetool status",
    ),
    Rule(
        "kafka-topics kafka-topics.sh kafka-delete-records kafka-delete-records.sh "
        "kafka-consumer-groups kafka-consumer-groups.sh",
        reason="deletes data from the broker",
        flags="--delete --delete-offsets --reset-offsets --offset-json-file",
        key="database",
        yes="kafka-topics.sh --delete --topic x",
        no="kafka-topics.sh --list",
    ),
    Rule(
        "curator elasticsearch-reset-password elasticsearch-node",
        reason="deletes data from the search index",
        where=operands_at_least(0),
        key="database",
        yes="curator delete.yml",
        no="curator --help",
    ),
    Rule(
        "memcached-tool",
        reason="empties the cache",
        where=after_sub(1, lambda text: text in ("flush", "settings_")),
        key="database",
        yes="memcached-tool localhost flush",
        no="memcached-tool localhost stats",
    ),
    Rule("etcdctl", "del", reason="deletes data", key="database", yes="etcdctl del x", no="etcdctl get x"),
    Rule(
        "couchbase-cli",
        "bucket-flush|bucket-delete|rebalance|failover|server-remove",
        reason="removes data",
        key="database",
        yes="couchbase-cli bucket-flush",
        no="couchbase-cli bucket-list",
    ),
    Rule(
        "cypher-shell arangosh",
        reason="deletes data",
        where=lambda call: (
            any(
                re.search(r"(?i)detach\s+delete|_drop\(|drop\s+(?:database|constraint|index)", word.text)
                for word in call.words
            )
            or bool(call.stdin and call.stdin.text and re.search(r"(?i)detach\s+delete", call.stdin.text))
        ),
        key="database",
        yes="cypher-shell 'MATCH (n) DETACH DELETE n'",
        no="cypher-shell 'MATCH (n) RETURN n'",
    ),
)
