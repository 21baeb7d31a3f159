"""Programs that record the user or report on the machine: screen, clipboard, microphone, settings, processes."""

from __future__ import annotations

import re

from toolcrib.approval.shell.model import Origin, StreamData, name_set
from toolcrib.approval.shell.paths import resolve
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Runner

SCREEN = name_set(
    "scrot maim grim screencapture xwd gnome-screenshot spectacle flameshot xfce4-screenshooter fbgrab import slurp "
    "wf-recorder recordmydesktop byzanz-record"
)
MICROPHONE = name_set("arecord parecord parec pw-record rec pw-cat fswebcam imagesnap streamer motion wf-recorder")
KEYBOARD = name_set("xinput xev evtest showkey logkeys libinput snoopy")
CLIPBOARD = name_set("pbpaste wl-paste xclip xsel cliphist copyq clipman gpaste-client greenclip termux-clipboard-get")
USER_SETTINGS = name_set("dconf gsettings defaults kreadconfig5 xfconf-query plutil ioreg system_profiler gconftool-2")
MACHINE = name_set(
    "ps top htop ss netstat lsof ifconfig ip arp route nmcli iwconfig iwlist last lastlog who w users finger getent id "
    "whoami dmesg journalctl lsblk mount findmnt lspci lsusb dmidecode lshw hostnamectl systemctl launchctl crontab "
    "dpkg rpm pacman brew uname hostname loginctl lsmod sysctl scutil networksetup dscl sw_vers"
)
"""Programs that tell an attacker about the machine; what they print is nobody's business elsewhere."""
PLAYERS = name_set("ffmpeg ffplay gst-launch-1.0 vlc cvlc sox")
"""Programs that record if they are given a device."""
TELLS_OR_CAPTURES = SCREEN | MICROPHONE | KEYBOARD | CLIPBOARD | USER_SETTINGS | MACHINE | PLAYERS | {"osascript"}
DEVICES = re.compile(r"x11grab|kmsgrab|gdigrab|avfoundation|v4l2|video4linux2|pulse|alsa|dshow|fbdev|pipewire|openal")
DEVICE_SOURCE = re.compile(r"ximagesrc|pulsesrc|alsasrc|v4l2src|screen://|v4l2://")
SETTINGS_SHOWN = re.compile(r"dump|read|list\S*|export|find|-p|SP\w+|-a|-l\w*")
PRIVATE_FILE = StreamData(None, Origin.PRIVATE)
STREAMED_TO = re.compile(r"(?:rtmps?|rtsp|tcp|udp|srt|https?|ftp|sftp|icecast|tls|rtp)://(?!localhost|127\.|\[::1\])")


def kind_of_private(call: CommandCall) -> int:
    """What a command's output is, if it is private: PRIVATE, MACHINE, or 0."""
    program = call.program
    if program not in TELLS_OR_CAPTURES:
        return 0
    if program in MACHINE:
        return Origin.MACHINE
    if program in CLIPBOARD:
        reads = program not in ("xclip", "xsel", "copyq") or any(
            re.fullmatch(r"-o|--?out(?:put)?|-bo|read|-\w*o", word.text) for word in call.words
        )
        return Origin.PRIVATE if reads else 0
    if program == "osascript":
        return Origin.PRIVATE if any("clipboard" in word.text for word in call.words) else 0
    if program in USER_SETTINGS:
        return Origin.PRIVATE if any(SETTINGS_SHOWN.fullmatch(word.text) for word in call.words[:2]) else 0
    return Origin.PRIVATE if captures(call) else 0


def captures(call: CommandCall) -> bool:
    """True for a command that records the screen, the microphone, the camera or the keyboard."""
    if call.program in PLAYERS:
        texts = [word.text for word in call.words]
        pairs = zip(["", *texts], texts, strict=False)
        return any(
            (before in ("-f", "-t") and DEVICES.fullmatch(text)) or DEVICE_SOURCE.match(text) for before, text in pairs
        ) or (call.program == "sox" and "-d" in texts[:2])
    if call.program == "import":
        return any(word.text in ("-window", "-screen") for word in call.words)
    return call.program in SCREEN or call.program in MICROPHONE


def judge_capture(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    """Report recordings of the keyboard, the microphone or the camera, and of the screen if they are sent away."""
    if call.program not in TELLS_OR_CAPTURES:
        return
    if call.program in KEYBOARD:
        if any(re.fullmatch(r"test|test-xi2|debug-events|-k|--start|/dev/input/\S+", word.text) for word in call.words):
            runner.report("credential", "records what is typed on the keyboard", site)
        return
    if not captures(call):
        return
    if any(STREAMED_TO.match(word.text) for word in call.words):
        runner.report("exfiltration", "sends a recording of the screen, the microphone or the camera elsewhere", site)
    elif call.program in MICROPHONE:
        runner.report("credential", "records the microphone or the camera", site)
    for word in call.words:
        if word.text and word.text[0] not in "-:" and word.known:
            call.state.files[resolve(word, call.state)] = PRIVATE_FILE
