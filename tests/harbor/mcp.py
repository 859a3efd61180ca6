"""A server of the Model Context Protocol written for `sh`: images need no other language for it."""

from __future__ import annotations

SERVER = r"""
say() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; }
text() { say "$1" '{"content":[{"type":"text","text":"'"$2"'"}]}'; }
while IFS= read -r line; do
  id=$(printf %s "$line" | sed -n 's/.*"id": *\([0-9][0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*)
      version=$(printf %s "$line" | sed -n 's/.*"protocolVersion": *"\([^"]*\)".*/\1/p')
      server='"serverInfo":{"name":"vault","version":"1"}'
      say "$id" '{"protocolVersion":"'"$version"'","capabilities":{"tools":{}},'"$server"'}' ;;
    *'"tools/list"'*)
      key='"properties":{"key":{"type":"string","description":"the metal of the key"}}'
      schema='"inputSchema":{"type":"object",'"$key"',"required":["key"]}'
      one='{"name":"open_vault","description":"Opens the vault with a key.",'"$schema"'}'
      two='{"name":"end","description":"Ends the server.","inputSchema":{"type":"object"}}'
      say "$id" '{"tools":['"$one,$two"']}' ;;
    *'"end"'*) exit 7 ;;
    *'"silver"'*) text "$id" "the number is 42" ;;
    *'"tools/call"'*) text "$id" "wrong key" ;;
  esac
done
"""
