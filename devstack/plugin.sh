#!/usr/bin/env bash
#
# DevStack plugin of amp-nova: bookings in Nova's scheduler, an agent on every compute host.
#
#   enable_plugin amp-nova URL [BRANCH]
#
# Settings are in ./settings, and what they do in ./README.rst.

# Save trace setting
_XTRACE_AMP_NOVA=$(set +o | grep xtrace)
set +o xtrace

AMP_NOVA_FILTER=amp_nova.nova_plugins.filters.AmpCapacityFilter
AMP_NOVA_WEIGHERS=(
    amp_nova.nova_plugins.weights.AmpEfficiencyWeigher
    amp_nova.nova_plugins.weights.AmpScalabilityWeigher
)
AMP_NOVA_PROMETHEUS_CONF=$AMP_NOVA_CONF_DIR/prometheus.yml

# Where setup_develop puts commands
function _amp_nova_bin_dir {
    if [[ "$GLOBAL_VENV" == "True" ]]; then
        echo "$DEVSTACK_VENV/bin"
    else
        get_python_exec_prefix
    fi
}

# Install the checkout
function install_amp_nova {
    local extras=osc
    if is_service_enabled amp-agent; then
        extras=agent,osc
    fi
    if is_service_enabled amp-vendordata; then
        extras+=,vendordata
    fi
    setup_develop "$AMP_NOVA_DIR" "$extras"
    if is_service_enabled amp-prometheus; then
        install_package prometheus
        # The distribution's unit would take the port.
        sudo systemctl disable --now prometheus.service || true
    fi
}

# Adds values to a list in nova.conf, beside those of other plugins; stack.sh writes that file anew
function _amp_nova_add_to_list { # SECTION OPTION DEFAULT VALUE...
    local list value
    list=$(iniget "$NOVA_CONF" "$1" "$2")
    list=${list// /}
    list=${list:-$3}
    for value in "${@:4}"; do
        if [[ ",$list," != *",$value,"* ]]; then
            list=${list:+$list,}$value
        fi
    done
    iniset "$NOVA_CONF" "$1" "$2" "$list"
}

# The filter and the weighers; the validators come through their entry point
function _configure_amp_nova_scheduler {
    local available
    available=$(iniget_multiline "$NOVA_CONF" filter_scheduler available_filters)
    if [[ -z "$available" ]]; then
        iniadd "$NOVA_CONF" filter_scheduler available_filters nova.scheduler.filters.all_filters
    fi
    if [[ " $available " != *" $AMP_NOVA_FILTER "* ]]; then
        iniadd "$NOVA_CONF" filter_scheduler available_filters "$AMP_NOVA_FILTER"
    fi
    _amp_nova_add_to_list filter_scheduler enabled_filters "$NOVA_FILTERS" AmpCapacityFilter
    _amp_nova_add_to_list filter_scheduler weight_classes nova.scheduler.weights.all_weighers \
        "${AMP_NOVA_WEIGHERS[@]}"
}

# Credentials with which the agent maintains its resource providers
function _configure_amp_nova_claims {
    iniset "$AMP_NOVA_CONF" placement enabled "$AMP_NOVA_CLAIMS"
    iniset "$AMP_NOVA_CONF" placement auth_type password
    iniset "$AMP_NOVA_CONF" placement auth_url "$KEYSTONE_SERVICE_URI"
    iniset "$AMP_NOVA_CONF" placement username amp-nova
    iniset "$AMP_NOVA_CONF" placement password "$SERVICE_PASSWORD"
    iniset "$AMP_NOVA_CONF" placement project_name "$SERVICE_PROJECT_NAME"
    iniset "$AMP_NOVA_CONF" placement user_domain_name "$SERVICE_DOMAIN_NAME"
    iniset "$AMP_NOVA_CONF" placement project_domain_name "$SERVICE_DOMAIN_NAME"
    iniset "$AMP_NOVA_CONF" placement region_name "$REGION_NAME"
}

function _configure_amp_nova_agent {
    local core_type
    sudo install -d -o "$STACK_USER" -m 755 "$AMP_NOVA_CONF_DIR"
    sudo install -d -m 755 "$AMP_NOVA_STATE_DIR"
    rm -f "$AMP_NOVA_CONF"
    install -m 640 /dev/null "$AMP_NOVA_CONF" # it holds passwords
    iniset "$AMP_NOVA_CONF" topology calibration_file "$AMP_NOVA_STATE_DIR/calibration.json"
    while read -r -d ';' core_type; do
        # The section exists by now. iniset_multiline would split the value at its spaces.
        [[ -z "$core_type" ]] || iniadd_literal "$AMP_NOVA_CONF" topology core_type "$core_type"
    done <<<"$AMP_NOVA_CORE_TYPES;"
    # The schedulers' message bus, even if compute hosts use the bus of their cell.
    iniset "$AMP_NOVA_CONF" reports transport_url "$(get_transport_url)"
    iniset "$AMP_NOVA_CONF" exporter address "$AMP_NOVA_METRICS_ADDRESS"
    iniset "$AMP_NOVA_CONF" exporter port "$AMP_NOVA_METRICS_PORT"
    local shared
    shared=$(iniget "$NOVA_CPU_CONF" compute cpu_shared_set)
    if [[ -n "$shared" ]]; then
        iniset "$AMP_NOVA_CONF" nova cpu_shared_set "$shared"
    fi
    _configure_amp_nova_claims
}

# A scrape job for all agents, and amp-nova's rules and alerts
function _configure_amp_nova_prometheus {
    local target
    sudo install -d -o "$STACK_USER" -m 755 "$AMP_NOVA_CONF_DIR"
    {
        echo "global: {scrape_interval: 5s, scrape_timeout: 5s}"
        echo "rule_files:"
        echo "  - $AMP_NOVA_DIR/etc/amp-nova/prometheus/rules.yaml"
        echo "  - $AMP_NOVA_DIR/etc/amp-nova/prometheus/alerts.yaml"
        echo "scrape_configs:"
        echo "  - job_name: amp-nova"
        echo "    static_configs:"
        for target in ${AMP_NOVA_SCRAPE//,/ }; do
            # "openstack amp" finds a host's series by the label "host".
            echo "      - targets: ['$target']"
            echo "        labels: {host: '$(_amp_nova_host_at "${target%:*}")'}"
        done
    } >"$AMP_NOVA_PROMETHEUS_CONF"
}

# Name of the host with this address; the address if it has none
function _amp_nova_host_at {
    if [[ "$1" == "$AMP_NOVA_METRICS_ADDRESS" ]]; then
        hostname
    else
        getent hosts "$1" | awk '{ print $2; found = 1 } END { exit !found }' || echo "$1"
    fi
}

# The service that tells servers what they get, and Nova's metadata API, which asks it
function _configure_amp_nova_vendordata {
    local option
    sudo install -d -o "$STACK_USER" -m 755 "$AMP_NOVA_CONF_DIR"
    rm -f "$AMP_NOVA_VENDORDATA_CONF"
    install -m 640 /dev/null "$AMP_NOVA_VENDORDATA_CONF" # it holds a password
    iniset "$AMP_NOVA_VENDORDATA_CONF" vendordata prometheus_url \
        "http://$SERVICE_HOST:$AMP_NOVA_PROMETHEUS_PORT"
    configure_keystone_authtoken_middleware "$AMP_NOVA_VENDORDATA_CONF" amp-nova
    _amp_nova_add_to_list api vendordata_providers StaticJSON DynamicJSON
    _amp_nova_add_to_list api vendordata_dynamic_targets "" \
        amp@http://127.0.0.1:9179/v1/vendordata
    for option in auth_type=password "auth_url=$KEYSTONE_SERVICE_URI" username=nova \
        "password=$SERVICE_PASSWORD" "project_name=$SERVICE_PROJECT_NAME" \
        "user_domain_name=$SERVICE_DOMAIN_NAME" "project_domain_name=$SERVICE_DOMAIN_NAME"; do
        iniset "$NOVA_CONF" vendordata_dynamic_auth "${option%%=*}" "${option#*=}"
    done
}

# What the Tempest plugin needs to know of this cloud
function _configure_amp_nova_tempest {
    iniset "$TEMPEST_CONFIG" amp_nova claims "$AMP_NOVA_CLAIMS"
    if is_service_enabled amp-prometheus; then
        iniset "$TEMPEST_CONFIG" amp_nova prometheus_url \
            "http://$SERVICE_HOST:$AMP_NOVA_PROMETHEUS_PORT"
    fi
}

# Let Grafana load amp-nova's dashboards
function _configure_amp_nova_grafana {
    local dashboards=$AMP_NOVA_DIR/etc/amp-nova/grafana
    if [[ ! -d "$dashboards" ]]; then
        return
    fi
    sudo install -d -m 755 "$AMP_NOVA_GRAFANA_DIR"
    sudo tee "$AMP_NOVA_GRAFANA_DIR/amp-nova.yaml" >/dev/null <<EOF
apiVersion: 1
providers:
  - name: amp-nova
    folder: amp-nova
    type: file
    options: {path: $dashboards}
EOF
}

function configure_amp_nova {
    if is_service_enabled n-sch; then
        _configure_amp_nova_scheduler
    fi
    if is_service_enabled amp-agent; then
        _configure_amp_nova_agent
    fi
    if is_service_enabled amp-prometheus; then
        _configure_amp_nova_prometheus
    fi
    if is_service_enabled amp-vendordata; then
        _configure_amp_nova_vendordata
    fi
    if is_service_enabled grafana; then
        _configure_amp_nova_grafana
    fi
}

# On the host with Keystone: create the agents' service user, and register Prometheus in the catalogue
function init_amp_nova {
    if ! is_service_enabled key; then
        return
    fi
    create_service_user amp-nova admin
    if is_service_enabled amp-prometheus; then
        get_or_create_service prometheus prometheus "Prometheus"
        get_or_create_endpoint prometheus "$REGION_NAME" \
            "http://$SERVICE_HOST:$AMP_NOVA_PROMETHEUS_PORT"
    fi
}

# The agent and the guard as on every other host: their own user, and the units that are shipped
function _start_amp_nova_agent {
    local bin=$1
    sudo systemd-sysusers "$AMP_NOVA_DIR/etc/amp-nova/amp-nova.sysusers"
    # Without a path, systemd does not find commands of DevStack's virtual environment.
    sed "s|^ExecStart=.*|ExecStart=$bin/amp-nova-agent --config-file $AMP_NOVA_CONF|" \
        "$AMP_NOVA_DIR/etc/amp-nova/amp-nova-agent.service" |
        sudo tee "$SYSTEMD_DIR/amp-nova-agent.service" >/dev/null
    sed "s|^ExecStart=|&$bin/|" "$AMP_NOVA_DIR/etc/amp-nova/amp-nova-guard.service" |
        sudo tee "$SYSTEMD_DIR/amp-nova-guard.service" >/dev/null
    sudo systemctl daemon-reload
    sudo systemctl enable --now amp-nova-guard amp-nova-agent
}

function start_amp_nova {
    local bin
    bin=$(_amp_nova_bin_dir)
    if is_service_enabled amp-agent; then
        if [[ "$AMP_NOVA_CALIBRATE" == "True" ]]; then
            sudo "$bin/amp-nova" calibrate --config-file "$AMP_NOVA_CONF"
        fi
        _start_amp_nova_agent "$bin"
    fi
    if is_service_enabled amp-prometheus; then
        mkdir -p "$DATA_DIR/amp-nova/prometheus"
        run_process amp-prometheus "/usr/bin/prometheus \
--config.file=$AMP_NOVA_PROMETHEUS_CONF \
--storage.tsdb.path=$DATA_DIR/amp-nova/prometheus \
--web.listen-address=$SERVICE_LISTEN_ADDRESS:$AMP_NOVA_PROMETHEUS_PORT"
    fi
    if is_service_enabled amp-vendordata; then
        run_process amp-vendordata \
            "$bin/amp-nova-vendordata --config-file $AMP_NOVA_VENDORDATA_CONF"
    fi
}

function stop_amp_nova {
    stop_process amp-vendordata
    stop_process amp-prometheus
    if is_service_enabled amp-agent; then
        sudo systemctl disable --now amp-nova-agent amp-nova-guard || true # they may not be there
    fi
}

# The guests are gone by now, and all limits with them: only files are left
function cleanup_amp_nova {
    sudo rm -rf "$AMP_NOVA_CONF_DIR" "$AMP_NOVA_STATE_DIR" /run/amp-nova
    sudo rm -rf "$DATA_DIR/amp-nova"
    sudo rm -f "$AMP_NOVA_GRAFANA_DIR/amp-nova.yaml"
    sudo rm -f "$SYSTEMD_DIR/amp-nova-agent.service" "$SYSTEMD_DIR/amp-nova-guard.service"
    sudo rm -f "$SYSTEMD_DIR/devstack@amp-prometheus.service"
    sudo rm -f "$SYSTEMD_DIR/devstack@amp-vendordata.service"
}

if [[ "$1" == "stack" && "$2" == "install" ]]; then
    echo_summary "Installing amp-nova"
    install_amp_nova
elif [[ "$1" == "stack" && "$2" == "post-config" ]]; then
    echo_summary "Configuring amp-nova"
    configure_amp_nova
    init_amp_nova
elif [[ "$1" == "stack" && "$2" == "extra" ]]; then
    echo_summary "Starting amp-nova"
    start_amp_nova
elif [[ "$1" == "stack" && "$2" == "test-config" ]]; then
    if is_service_enabled tempest; then
        _configure_amp_nova_tempest
    fi
elif [[ "$1" == "unstack" ]]; then
    echo_summary "Stopping amp-nova"
    stop_amp_nova
elif [[ "$1" == "clean" ]]; then
    echo_summary "Removing amp-nova"
    cleanup_amp_nova
fi

# Restore xtrace
$_XTRACE_AMP_NOVA
