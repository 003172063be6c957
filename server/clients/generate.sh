#!/bin/sh
# Music from a text, and a cover of it, with curl: sh generate.sh
# TICKRT_URL and TICKRT_API_KEY name the server and its key.
set -eu
url=${TICKRT_URL:-http://localhost:8000}

ask() {
    path=$1
    shift
    # An error is a problem document, which says what to do; curl then ends with 22.
    curl --silent --show-error --fail-with-body -H "Authorization: Bearer ${TICKRT_API_KEY:-none}" "$@" "$url$path"
}

ask /v1/audio/generations -H 'content-type: application/json' -o melody.flac \
    -d '{"prompt": "calm piano melody in D minor", "seconds": 8, "seed": 1, "response_format": "flac"}'

# A source is uploaded once; its id is the hash of its bytes.
id=$(ask /v1/sources -F source=@melody.flac | sed 's/.*"id": *"\([0-9a-f]*\)".*/\1/')
ask /v1/audio/generations -H 'content-type: application/json' -o cover.flac \
    -d "{\"prompt\": \"slow dark strings\", \"source_id\": \"$id\", \"denoise\": 0.7, \"seed\": 1, \"response_format\": \"flac\"}"
