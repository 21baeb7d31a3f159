"""Writing to, formatting and partitioning disks."""

from __future__ import annotations

import re

from toolcrib.approval.shell.paths import DISK, resolve
from toolcrib.approval.shell.rules.base import CommandCall, DangerClass, Rule, operand, operands_at_least

DANGERS = (
    DangerClass(
        "disk_write", "raw disk write", "this host", r"\bdd\b.*\bof=/dev/|>\s*/dev/[sh]d", "dd if=/dev/zero of=/dev/sda"
    ),
    DangerClass("format", "filesystem format", "this host", r"\bmkfs\b|\bmkswap\b|\bwipefs\b", "mkfs.ext4 /dev/sda1"),
)


def names_disk(call: CommandCall) -> bool:
    return any(DISK.match(resolve(each.text.partition("=")[2] or each.text, call.state)) for each in call.words)


HUGE = re.compile(r"(?i)(?:-l|--length=)?(?:\d{3,}G(?:i?B)?|\d+[TPE](?:i?B)?|\d{12,})")


def fills_disk(call: CommandCall) -> bool:
    """True for an endless device that is copied to a file; `count=` or a pipe ends it."""
    texts = [word.text for word in call.words]
    endless = any(re.fullmatch(r"if=/dev/(?:zero|u?random|full)", text) for text in texts)
    to_file = any(re.match(r"of=(?!/dev/)", text) for text in texts)
    return endless and to_file and not any(text.startswith("count=") for text in texts)


def changes_partitions(call: CommandCall) -> bool:
    texts = [word.text for word in call.words]
    reads = any(
        re.fullmatch(r"-l|-lu?|--list|-x|-s|-p|--print|-L|--dump|-d|-J|print|-v|--verify|-i.*", text) for text in texts
    )
    return names_disk(call) and not reads


def rewrites_table(call: CommandCall) -> bool:
    texts = " ".join(word.text for word in call.words)
    return bool(re.search(r"\b(?:mklabel|mkpart|rm|mktable|resizepart|name|set|toggle)\b", texts))


ENDLESS = re.compile(r"/dev/(?:zero|u?random|full)$")
HUGE = re.compile(r"\d+[TPE]i?B?|\d{3,}Gi?B?|\d{12,}")


RULES = (
    Rule(
        "cp",
        reason="writes to a file until the disk is full",
        where=lambda call: bool(call.arguments.operands) and bool(ENDLESS.match(call.arguments.operands[0].text)),
        key="disk_write",
        yes="cp /dev/zero x",
        no="cp a b",
    ),
    Rule(
        "head",
        reason="writes more than a disk usually holds",
        where=lambda call: any(
            HUGE.fullmatch(word.text.removeprefix("-c").removeprefix("--bytes=")) for word in call.words
        ),
        key="disk_write",
        yes="head -c 1T /dev/zero > x",
        no="head -c 10M /dev/zero > x",
    ),
    Rule(
        "mkfs mkfs.* newfs mke2fs mkdosfs mkntfs mkexfatfs",
        reason="formats a disk",
        where=names_disk,
        severity="block",
        key="format",
        yes="mkfs.ext4 /dev/sda1",
        no="mkfs.ext4 -V",
    ),
    Rule(
        "mkfs mkfs.* newfs mke2fs mkdosfs mkntfs mkexfatfs",
        reason="creates a filesystem",
        unless="-V --help",
        where=operand(lambda text: text.startswith("/dev/")),
        key="format",
        yes="mkfs.ext4 /dev/loop0",
        no="mkfs -V",
    ),
    Rule(
        "mkswap",
        reason="turns a disk into swap space",
        where=names_disk,
        severity="block",
        key="format",
        yes="mkswap /dev/sda2",
        no="mkswap --help",
    ),
    Rule(
        "mkswap",
        reason="turns a file into swap space",
        where=operands_at_least(1),
        key="format",
        yes="mkswap /swapfile",
        no="mkswap --help",
    ),
    Rule(
        "wipefs",
        reason="wipes the signatures of a disk",
        flags="-a --all -o --offset",
        unless="-n --no-act",
        where=names_disk,
        severity="block",
        key="format",
        yes="wipefs -a /dev/sda",
        no="wipefs /dev/sda",
    ),
    Rule(
        "wipefs",
        reason="wipes the signatures of a disk image",
        flags="-a --all -o --offset",
        unless="-n --no-act",
        where=operands_at_least(1),
        key="format",
        yes="wipefs -a disk.img",
        no="wipefs disk.img",
    ),
    Rule(
        "dd",
        reason="writes to a file until the disk is full",
        where=fills_disk,
        key="disk_write",
        yes="dd if=/dev/zero of=x",
        no="dd if=/dev/zero of=x bs=1M count=10",
    ),
    Rule(
        "fallocate",
        reason="reserves a large part of the disk",
        where=lambda call: any(HUGE.fullmatch(word.text) for word in call.words),
        key="disk_write",
        yes="fallocate -l 900G x",
        no="fallocate -l 1G x",
    ),
    Rule(
        "shred srm wipe scrub nwipe",
        reason="destroys a disk",
        where=names_disk,
        severity="block",
        key="disk_write",
        yes="shred -n 1 /dev/sda",
        no="shred --version",
    ),
    Rule(
        "blkdiscard",
        reason="discards all blocks of a disk",
        where=names_disk,
        severity="block",
        key="disk_write",
        yes="blkdiscard /dev/sda",
        no="blkdiscard --help",
    ),
    Rule(
        "nvme",
        "format|sanitize|write|write-zeroes|delete-ns",
        reason="erases a disk",
        severity="block",
        key="format",
        yes="nvme format /dev/nvme0n1",
        no="nvme list",
    ),
    Rule(
        "hdparm",
        reason="erases or reconfigures a disk",
        flags="--security-erase --security-erase-enhanced --trim-sector-ranges --make-bad-sector "
        "--write-sector --security-set-pass --dco-restore",
        key="disk_write",
        yes="hdparm --security-erase p /dev/sda",
        no="hdparm -I /dev/sda",
    ),
    Rule(
        "hdparm",
        reason="erases a disk",
        flags="--security-erase --security-erase-enhanced --trim-sector-ranges",
        where=names_disk,
        severity="block",
        key="disk_write",
        yes="hdparm --user-master u --security-erase p /dev/sda",
        no="hdparm -tT /dev/sda",
    ),
    Rule(
        "parted",
        reason="replaces the partition table",
        where=lambda call: names_disk(call) and any(word.text in ("mklabel", "mktable") for word in call.words),
        severity="block",
        key="disk_write",
        yes="parted -s /dev/sda mklabel gpt",
        no="parted -l",
    ),
    Rule(
        "sfdisk",
        reason="deletes the partitions of a disk",
        flags="--delete",
        unless="-n --no-act",
        where=names_disk,
        severity="block",
        key="disk_write",
        yes="sfdisk --delete /dev/sda",
        no="sfdisk -l /dev/sda",
    ),
    Rule(
        "badblocks",
        reason="overwrites a whole disk",
        flags="-w",
        where=names_disk,
        severity="block",
        key="disk_write",
        yes="badblocks -wsv /dev/sdb",
        no="badblocks -sv /dev/sdb",
    ),
    Rule(
        "qemu-img qemu-nbd",
        reason="writes an image to a disk",
        where=names_disk,
        key="disk_write",
        yes="qemu-img create -f raw /dev/sda 10G",
        no="qemu-img create disk.img 10G",
    ),
    Rule(
        "qemu-img",
        "resize",
        reason="cuts off the end of a disk image",
        flags="--shrink",
        key="disk_write",
        yes="qemu-img resize --shrink vm.qcow2 5G",
        no="qemu-img resize vm.qcow2 +5G",
    ),
    Rule(
        "cryptsetup",
        "luksFormat|erase|luksErase",
        reason="formats a disk",
        where=names_disk,
        severity="block",
        key="format",
        yes="cryptsetup luksFormat /dev/sdb2",
        no="cryptsetup luksOpen /dev/sdb2 x",
    ),
    Rule(
        "cryptsetup",
        "luksFormat|erase|luksErase|reencrypt|luksKillSlot|luksRemoveKey",
        reason="makes a disk's data unreadable",
        key="format",
        yes="cryptsetup luksFormat /dev/sdb",
        no="cryptsetup status x",
    ),
    Rule(
        "sgdisk gdisk",
        reason="wipes the partition table",
        flags="-Z --zap-all -z --zap -o --clear",
        where=names_disk,
        severity="block",
        key="disk_write",
        yes="sgdisk --zap-all /dev/sda",
        no="sgdisk -p /dev/sda",
    ),
    Rule(
        "fdisk sfdisk cfdisk gdisk sgdisk cgdisk",
        reason="changes partitions",
        where=changes_partitions,
        key="disk_write",
        yes="fdisk /dev/sdb",
        no="fdisk -l /dev/sdb",
    ),
    Rule(
        "parted gparted partprobe",
        reason="changes partitions",
        where=rewrites_table,
        key="disk_write",
        yes="parted /dev/sdb mklabel gpt",
        no="parted /dev/sdb print",
    ),
    Rule(
        "diskutil",
        "eraseDisk|eraseVolume|partitionDisk|zeroDisk|secureErase|reformat|apfs|unmountDisk|randomDisk",
        reason="erases a disk",
        key="format",
        yes="diskutil eraseDisk JHFS+ X disk2",
        no="diskutil list",
    ),
    Rule(
        "zfs",
        "destroy|rollback|receive|recv",
        reason="destroys or replaces a dataset",
        unless="-n",
        key="disk_write",
        yes="zfs destroy -r tank/home",
        no="zfs list",
    ),
    Rule(
        "zpool",
        "destroy|labelclear|detach|remove|offline|create",
        reason="changes a storage pool",
        key="disk_write",
        yes="zpool destroy tank",
        no="zpool status",
    ),
    Rule(
        "lvremove vgremove pvremove lvreduce vgreduce",
        reason="removes a volume",
        where=operands_at_least(1),
        key="disk_write",
        yes="lvremove /dev/vg/lv",
        no="lvremove --help",
    ),
    Rule(
        "mdadm",
        reason="changes a disk array",
        flags="--zero-superblock --stop -S --create -C --remove -r --fail -f",
        key="disk_write",
        yes="mdadm --zero-superblock /dev/sdb1",
        no="mdadm --detail /dev/md0",
    ),
    Rule(
        "badblocks",
        reason="overwrites a disk",
        flags="-w",
        key="disk_write",
        yes="badblocks -w /dev/sdb",
        no="badblocks -v /dev/sdb",
    ),
    Rule(
        "resize2fs e2fsck fsck fsck.* tune2fs xfs_repair debugfs ntfsfix btrfsck",
        reason="changes a filesystem in place",
        where=lambda call: names_disk(call) and not call.arguments.has("-n", "-l", "-N"),
        key="disk_write",
        yes="resize2fs /dev/sda1 5G",
        no="tune2fs -l /dev/sda1",
    ),
    Rule(
        "flashrom fwupdmgr fwupdtool nvram efibootmgr",
        reason="changes the firmware",
        where=lambda call: any(
            re.match(r"-w|--write|update|install|-B|-b|-o|-c|--delete-bootnum|-E|-d|-C", word.text)
            for word in call.words
        ),
        key="disk_write",
        yes="efibootmgr -b 0 -B",
        no="efibootmgr -v",
    ),
)
