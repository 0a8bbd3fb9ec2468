//! OpenTelemetry's environment variables. Porch's manifests set them on the function runner that
//! this project replaces. The log has a warning for each value that is not supported.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// Longest value in a warning, in characters.
const MAX_QUOTED: usize = 100;
/// How long a collector may take to answer. OpenTelemetry's default.
const TRACES_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings that the variables request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Otel {
    /// `OTEL_METRICS_EXPORTER`: whether metrics are served. Only `none` turns them off.
    pub metrics: bool,
    /// `OTEL_EXPORTER_PROMETHEUS_HOST`: the admin port's address if no flag sets it. `None` means
    /// all interfaces.
    pub admin_host: Option<IpAddr>,
    /// `OTEL_TRACES_EXPORTER`: whether spans are created and sent to a collector.
    pub traces: bool,
    /// `OTEL_EXPORTER_OTLP_TRACES_TIMEOUT` or `OTEL_EXPORTER_OTLP_TIMEOUT`: how long a collector
    /// may take to answer.
    pub traces_timeout: Duration,
    /// `OTEL_SERVICE_NAME`.
    pub service_name: Option<String>,
    /// Warnings for the log, about values that are not supported.
    pub warnings: Vec<String>,
}

impl Otel {
    /// Reads the variables with the function `variable`. An empty variable counts as unset, as
    /// OpenTelemetry specifies.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let given =
            |name| variable(name).map(|value| value.trim().to_owned()).filter(|text| !text.is_empty());
        let mut warnings = Vec::new();
        let mut warn = |name, value: &str, why| {
            let value: String = value.chars().take(MAX_QUOTED).collect();
            warnings.push(format!("{name}={value:?}: {why}"));
        };
        // Some(true): the value is `known`. Some(false): it is `none`. None: unset or unknown.
        let mut exporter = |name, known, why| {
            let value = given(name)?;
            let is_known = value.eq_ignore_ascii_case(known);
            if is_known || value.eq_ignore_ascii_case("none") {
                return Some(is_known);
            }
            warn(name, &value, why);
            None
        };
        let metrics = exporter(
            "OTEL_METRICS_EXPORTER",
            "prometheus",
            "metrics are only served to Prometheus, at /metrics of the admin port",
        );
        let traces = exporter(
            "OTEL_TRACES_EXPORTER",
            "otlp",
            "otlp is the only exporter of spans; no spans are sent, but the trace context of calls is passed on",
        );
        let is_disabled = given("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"));
        let traces = traces == Some(true) && !is_disabled;
        let protocols = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
        if let Some((name, protocol)) = protocols.iter().find_map(|name| Some((name, given(name)?)))
            && traces
            && protocol != "http/protobuf"
        {
            let why = "spans are sent by http/protobuf, the only protocol here; set the endpoint to the collector's port \
                       for this protocol, usually 4318";
            warn(name, &protocol, why);
        }
        let timeouts = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
        let traces_timeout = timeouts.iter().find_map(|name| given(name)?.parse().ok());
        let admin_host = given("OTEL_EXPORTER_PROMETHEUS_HOST").and_then(|host| match host.as_str() {
            "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
            host => {
                let why = "this is not an IP address and is ignored";
                host.parse().inspect_err(|_| warn("OTEL_EXPORTER_PROMETHEUS_HOST", host, why)).ok()
            }
        });
        Self {
            metrics: metrics != Some(false),
            admin_host: admin_host.filter(|host: &IpAddr| !host.is_unspecified()),
            traces,
            traces_timeout: traces_timeout.map_or(TRACES_TIMEOUT, Duration::from_millis),
            service_name: given("OTEL_SERVICE_NAME"),
            warnings,
        }
    }

    /// Registers `target_info`, the metric in which OpenTelemetry's Prometheus exporter names the
    /// service. `name` is used when no variable names the service.
    pub(crate) fn register(&self, registry: &mut Registry, name: &str, version: &str) {
        let name = self.service_name.as_deref().unwrap_or(name);
        let labels = [("service_name", name), ("service_version", version)];
        let labels = labels.map(|(label, value)| (label.to_owned(), value.to_owned()));
        registry.register("target", "The service that these metrics belong to", Info::new(labels.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    const METRICS: &str = "OTEL_METRICS_EXPORTER";
    const TRACES: &str = "OTEL_TRACES_EXPORTER";
    const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
    const TIMEOUT: &str = "OTEL_EXPORTER_OTLP_TIMEOUT";
    const HOST: &str = "OTEL_EXPORTER_PROMETHEUS_HOST";
    const ON: (&str, &str) = (TRACES, "otlp");

    fn read(variables: &[(&str, &str)]) -> Otel {
        Otel::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_request_is_met_or_gets_a_warning() {
        let none = Otel {
            metrics: true,
            admin_host: None,
            traces: false,
            traces_timeout: TRACES_TIMEOUT,
            service_name: None,
            warnings: Vec::new(),
        };
        let name = "porch-function-runner";
        let no_metrics = Otel { metrics: false, ..none.clone() };
        let traced = Otel { traces: true, ..none.clone() };
        let at = |host: [u8; 4]| Otel { admin_host: Some(host.into()), ..none.clone() };
        let within = |millis| Otel { traces_timeout: Duration::from_millis(millis), ..none.clone() };
        let porch =
            [(METRICS, "prometheus"), (HOST, "0.0.0.0"), (TRACES, "none"), ("OTEL_SERVICE_NAME", name)];
        let named = Otel { service_name: Some(name.to_owned()), ..none.clone() };
        for (variables, expected, warned) in [
            (&[][..], &none, None),
            (&porch, &named, None),
            (&porch.map(|(name, _)| (name, " ")), &none, None),
            (&[(METRICS, "none")], &no_metrics, None),
            (&[(METRICS, "None")], &no_metrics, None),
            (&[(METRICS, "Prometheus")], &none, None),
            (&[(METRICS, "none,otlp")], &none, Some(METRICS)),
            (&[ON], &traced, None),
            (&[(TRACES, "otlp,console")], &none, Some(TRACES)),
            (&[ON, ("OTEL_SDK_DISABLED", "True")], &none, None),
            (&[ON, ("OTEL_SDK_DISABLED", "false")], &traced, None),
            (&[ON, (PROTOCOL, "http/protobuf")], &traced, None),
            (&[ON, (PROTOCOL, "grpc")], &traced, Some(PROTOCOL)),
            (&[(PROTOCOL, "grpc")], &none, None),
            (
                &[ON, ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"), (PROTOCOL, "grpc")],
                &traced,
                None,
            ),
            (&[("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "500"), (TIMEOUT, "700")], &within(500), None),
            (&[("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "soon"), (TIMEOUT, "700")], &within(700), None),
            (&[(HOST, "10.0.0.1")], &at([10, 0, 0, 1]), None),
            (&[(HOST, "localhost")], &at([127, 0, 0, 1]), None),
            (&[(HOST, "::")], &none, None),
            (&[(HOST, "here")], &none, Some(HOST)),
        ] {
            let mut found = read(variables);
            let warnings = std::mem::take(&mut found.warnings);
            let names: Vec<_> = warnings.iter().filter_map(|text| Some(text.split_once('=')?.0)).collect();
            assert_eq!((&found, names), (expected, Vec::from_iter(warned)), "{variables:?}");
        }
        let expected = "OTEL_TRACES_EXPORTER=\"zipkin\": otlp is the only exporter of spans; no spans are sent, but the \
                        trace context of calls is passed on";
        assert_eq!(read(&[(TRACES, "zipkin")]).warnings, [expected]);
    }

    #[test]
    fn target_info_names_the_service() {
        for (given, name) in [("porch-function-runner", "porch-function-runner"), ("", "porch-fn-runner")] {
            let mut registry = Registry::default();
            read(&[("OTEL_SERVICE_NAME", given)]).register(&mut registry, "porch-fn-runner", "1.2.3");
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let line = format!("target_info{{service_name=\"{name}\",service_version=\"1.2.3\"}} 1\n");
            assert!(text.contains(&line), "{text}");
        }
    }
}
