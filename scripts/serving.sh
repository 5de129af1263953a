# Sourced by scripts that need a running server: `serve [FLAG...]` starts one and sets `url`. Each
# ends with the script.
servers=()
logs=$(mktemp -d)
trap 'kill "${servers[@]}" 2>/dev/null || true; rm -rf "$logs"' EXIT

serve() {
    local log="$logs/${#servers[@]}"
    : >"$log" # It is there to be read before the server has begun.
    RUST_LOG=warn target/debug/forerun serve --port 0 "$@" >"$log" &
    servers+=($!)
    for _ in $(seq 1200); do
        url=$(sed -n 's/listening on //p' "$log")
        if [ -n "$url" ]; then return; fi
        kill -0 "${servers[-1]}" 2>/dev/null || break
        sleep 0.1
    done
    echo "the server does not listen" >&2
    return 1
}
