# espeak-ng and ffmpeg, for speech that is spoken and recognised on this machine.

up() {
    install_packages espeak-ng ffmpeg -- espeak-ng ffmpeg
    status
}

down() { :; }

status() {
    command -v espeak-ng >/dev/null || fail "down"
    command -v ffmpeg >/dev/null || fail "ffmpeg is missing"
    say "up ($(espeak-ng --version 2>/dev/null | head -1))"
}
