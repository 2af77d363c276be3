#!/bin/bash
# Runs tests/conformance against a RabbitMQ of its own: on free ports of this host, in a folder that is removed when it
# is over. Installs Debian's rabbitmq-server if it is missing and that can be done. Arguments go to pytest.
set -eu -o pipefail

cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}

find_server() { compgen -G '/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin' | sort -V | tail -1; }

install_server() {
    # A service of its own would be started along with it, and is not wanted.
    local policy=/usr/sbin/policy-rc.d ours=
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
        ours=1
    fi
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes rabbitmq-server; } >/dev/null 2>&1 || true
    [ -z "$ours" ] || rm -f $policy
}

if [ -z "$(find_server)" ] && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "conformance: installing rabbitmq-server"
    install_server
fi
sbin=$(find_server)
if [ -z "$sbin" ]; then
    echo "conformance: no rabbitmq-server here and no way to install it" >&2
    exit 1
fi

# Ports that were free a moment ago: AMQP, distribution, epmd, and one for the command line tools.
read -r amqp dist epmd tools < <("$python" - <<'PYTHON'
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
print(*(each.getsockname()[1] for each in sockets))
PYTHON
)
folder=$(mktemp -d)
export HOME=$folder ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT=$epmd
export RABBITMQ_NODENAME=conformance@localhost RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 RABBITMQ_NODE_PORT=$amqp
export RABBITMQ_DIST_PORT=$dist RABBITMQ_CTL_DIST_PORT_MIN=$tools RABBITMQ_CTL_DIST_PORT_MAX=$tools
export RABBITMQ_MNESIA_BASE=$folder/data RABBITMQ_LOG_BASE=$folder/log RABBITMQ_PID_FILE=$folder/pid
export RABBITMQ_CONFIG_FILE=$folder/rabbitmq.conf RABBITMQ_CONF_ENV_FILE=$folder/env.conf
export RABBITMQ_ENABLED_PLUGINS_FILE=$folder/plugins
export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}"
mkdir "$RABBITMQ_MNESIA_BASE" "$RABBITMQ_LOG_BASE"
echo 'log.console = false' >"$RABBITMQ_CONFIG_FILE"
: >"$RABBITMQ_CONF_ENV_FILE"
echo '[].' >"$RABBITMQ_ENABLED_PLUGINS_FILE"
head -c 20 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$folder/.erlang.cookie"
chmod 400 "$folder/.erlang.cookie"

"$sbin/rabbitmq-server" >"$folder/console" 2>&1 &
server=$!
finish() {
    "$sbin/rabbitmqctl" -q stop "$RABBITMQ_PID_FILE" >/dev/null 2>&1 || kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    epmd -port "$epmd" -kill >/dev/null 2>&1 || true
    rm -rf "$folder"
}
trap finish EXIT

if ! timeout 120 "$sbin/rabbitmqctl" -q wait --timeout 110 "$RABBITMQ_PID_FILE" >/dev/null 2>&1; then
    echo "conformance: RabbitMQ did not start:" >&2
    tail -20 "$folder/console" "$folder"/log/*.log >&2 || true
    exit 1
fi
"$sbin/rabbitmqctl" -q add_user limited limited
"$sbin/rabbitmqctl" -q set_permissions limited '^limited' '^limited' '^limited'
"$sbin/rabbitmqctl" -q add_vhost closed
echo "conformance: RabbitMQ $(basename "$(dirname "$sbin")" | sed 's/.*-//') on port $amqp"
# Tests of the process `coterie up` are about no other broker.
"$python" -m pytest tests/conformance --ignore tests/conformance/test_node.py \
    --amqp-url "amqp://guest:guest@127.0.0.1:$amqp/" -rxX "$@"
