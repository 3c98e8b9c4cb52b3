#!/usr/bin/env bash
# devstack/smoke.sh: creates a flavor that books capacity, boots a server of it, and measures what the
# server receives, by libvirt's figures and by the agent's. Deletes everything at the end. Run it as the
# user "stack" on a host with n-cpu, after stack.sh. If all is well, the last line is "amp-nova: OK".
set -eu -o pipefail

REFCORES=${REFCORES:-0.5}
SECONDS_MEASURED=${SECONDS_MEASURED:-20}
WAIT_S=${WAIT_S:-300}
TOLERANCE=${TOLERANCE:-0.1}
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
devstack=${DEVSTACK_DIR:-$(dirname "$(dirname "$here")")/devstack}
name=amp-smoke-$$
folder=$(mktemp -d)

say() { echo "amp-nova: $*"; }

fail() {
    say "FAILED: $*"
    exit 1
}

# Nova may never say that a server is there, or gone.
server() {
    timeout --foreground "$WAIT_S" openstack server "$1" --wait "${@:2}" >/dev/null ||
        fail "'openstack server $1' did not succeed within $WAIT_S s; see journalctl -u devstack@n-cpu"
}

remove() {
    timeout --foreground "$WAIT_S" openstack server delete --wait "$name" 2>/dev/null || true
    openstack flavor delete "$name" 2>/dev/null || true
    openstack image delete "$name" 2>/dev/null || true
    rm -rf "$folder"
}

# openrc reads variables that are not set.
set +u
# shellcheck source=/dev/null
. "$devstack/openrc" admin admin >/dev/null
set -u
trap remove EXIT
# Nova validates extra specs from microversion 2.86 on; openrc asks for an older one.
export OS_COMPUTE_API_VERSION=2.96
# HOST_IP, like SERVICE_HOST, comes from what stack.sh left for openrc.
address=${AMP_NOVA_METRICS:-http://$HOST_IP:9178/metrics}
curl -fsS -m 10 "$address" >"$folder/metrics" || fail "no agent answers at $address"

# A disk whose boot sector loops: the guest always wants to run. Glance insists on a partition.
disk() {
    truncate -s 1M "$folder/disk"
    printf '\xeb\xfe' | dd of="$folder/disk" conv=notrunc status=none
    printf '\x80\x00\x02\x00\x83\x00\x03\x00\x01\x00\x00\x00\xff\x07\x00\x00' |
        dd of="$folder/disk" bs=1 seek=446 conv=notrunc status=none
    printf '\x55\xaa' | dd of="$folder/disk" bs=1 seek=510 conv=notrunc status=none
}

say "a wrong flavor is refused"
openstack flavor create "$name" --vcpus 1 --ram 64 --disk 1 >/dev/null
if openstack flavor set "$name" --property amp:pref_core=lots 2>"$folder/refused"; then
    fail "Nova accepted amp:pref_core=lots: the validators are not loaded"
fi
grep -q pref_core "$folder/refused" || fail "$(cat "$folder/refused")"

say "flavor $name books $REFCORES reference cores"
openstack amp flavor set "$name" "amp:pref_core=$REFCORES"
openstack amp host list
disk
openstack image create "$name" --disk-format raw --container-format bare --file "$folder/disk" >/dev/null
server create "$name" --flavor "$name" --image "$name" --nic none
id=$(openstack server show "$name" -f value -c id)
[ "$(openstack server show "$name" -f value -c status)" = ACTIVE ] || fail "the server is not ACTIVE"
domain=$(openstack server show "$name" -f value -c OS-EXT-SRV-ATTR:instance_name)
say "server $id runs as $domain"

properties=$(openstack flavor show "$name" -f value -c properties)
claimed=$(openstack resource provider allocation show "$id" -f value -c resources)
[[ "$properties" != *CUSTOM_AMP_MREFCORE* || "$claimed" == *CUSTOM_AMP_MREFCORE* ]] ||
    fail "Placement holds no claim of what flavor $name books: $claimed"

cpu_ns() { sudo virsh domstats --vcpu "$domain" | awk -F= '$1 ~ /vcpu.0.time/ { print $2 }'; }

metric() {
    curl -fsS -m 10 "$address" >"$folder/metrics"
    awk -v id="resource=\"$id\"" -v metric="$1" \
        'index($1, metric "{") == 1 && index($0, id) { print $NF; exit }' "$folder/metrics"
}

# As libvirt reads it from the kernel, in cores; nothing without a limit.
quota_cores() {
    sudo virsh schedinfo "$domain" |
        awk '{ it[$1] = $3 } END { if (it["vcpu_quota"] > 0) print it["vcpu_quota"] / it["vcpu_period"] }'
}

for _ in $(seq 30); do
    [ -z "$(quota_cores)" ] || break
    sleep 1
done
quota=$(quota_cores)
[ -n "$quota" ] || fail "the agent set no limit within 30 s; see journalctl -u amp-nova-agent"
sleep 2
before_ns=$(cpu_ns) began=$(date +%s%N)
sleep "$SECONDS_MEASURED"
after_ns=$(cpu_ns) ended=$(date +%s%N)
delivered=$(metric amp_instance_delivered_refcores)
awk -v used="$((after_ns - before_ns))" -v wall="$((ended - began))" -v quota="$quota" \
    -v delivered="$delivered" -v booked="$REFCORES" -v tolerance="$TOLERANCE" 'BEGIN {
        ratio = delivered / booked
        printf "amp-nova: limit %.4f cores, used %.4f, used/limit %.3f; agent: delivered/booked %.3f\n",
            quota, used / wall, used / wall / quota, ratio
        low = 1 - tolerance; high = 1 + tolerance; share = used / wall / quota
        exit !(share > low && share < high && ratio > low && ratio < high)
    }' || fail "what the server received is not what it booked"

prometheus=$(openstack endpoint list --service prometheus -f value -c URL 2>/dev/null || true)
if [ -n "$prometheus" ]; then
    query="amp_instance_delivered_refcores{resource=\"$id\"}"
    curl -fsS -m 10 --get --data-urlencode "query=$query" "$prometheus/api/v1/query" >"$folder/series"
    grep -q '"value":' "$folder/series" || fail "Prometheus at $prometheus has no series of $query"
    say "Prometheus at $prometheus has it too"
fi
openstack amp server show "$name"
openstack amp capacity show "$name"
server delete "$name"
for _ in $(seq 10); do
    [ -n "$(metric amp_instance_booked_refcores)" ] || break
    sleep 1
done
[ -z "$(metric amp_instance_booked_refcores)" ] || fail "the agent still reports a deleted server"
say "OK"
