//! OpenTelemetry's environment variables. Porch's manifests set them on the function runner that this replaces. The log
//! warns of each request that is not met.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// Longest value that is quoted, in characters.
const MAX_QUOTED: usize = 100;
/// How long a collector may take for its answer unless a variable says so, as OpenTelemetry has it.
const TRACES_TIMEOUT: Duration = Duration::from_secs(10);

/// What the variables say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Otel {
    /// `OTEL_METRICS_EXPORTER`: whether metrics are shown. Only `none` is no.
    pub metrics: bool,
    /// `OTEL_EXPORTER_PROMETHEUS_HOST`: where the admin port listens unless a flag says so; `None` is everywhere.
    pub admin_host: Option<IpAddr>,
    /// `OTEL_TRACES_EXPORTER`: whether spans are made and sent to a collector.
    pub traces: bool,
    /// `OTEL_EXPORTER_OTLP_TRACES_TIMEOUT` or `OTEL_EXPORTER_OTLP_TIMEOUT`: how long a collector may take for its answer.
    pub traces_timeout: Duration,
    /// `OTEL_SERVICE_NAME`.
    pub service_name: Option<String>,
    /// Requests that are not met, for the log.
    pub warnings: Vec<String>,
}

impl Otel {
    /// Those of this process.
    pub fn from_env() -> Self {
        // One that is no UTF-8 names nothing that is known here.
        Self::read(|name| std::env::var(name).ok())
    }

    /// Those that `variable` has. An empty one counts as none, as OpenTelemetry has it.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let given =
            |name| variable(name).map(|value| value.trim().to_owned()).filter(|text| !text.is_empty());
        let mut warnings = Vec::new();
        let mut warn = |name, value: &str, why| {
            let value: String = value.chars().take(MAX_QUOTED).collect();
            warnings.push(format!("{name}={value:?}: {why}"));
        };
        let is = |value: &Option<String>, text| {
            value.as_ref().is_some_and(|value| value.eq_ignore_ascii_case(text))
        };
        // An exporter: the one that there is, or none.
        let mut exporter = |name, known, why| {
            let given = given(name);
            if let Some(other) = &given
                && !is(&given, "none")
                && !is(&given, known)
            {
                warn(name, other, why);
            }
            given
        };
        let of_metrics = exporter(
            "OTEL_METRICS_EXPORTER",
            "prometheus",
            "metrics are for Prometheus to read at /metrics of the admin port, nowhere else",
        );
        let of_traces = exporter(
            "OTEL_TRACES_EXPORTER",
            "otlp",
            "spans are made for otlp, nothing else; the trace context of calls is passed on",
        );
        let traces = is(&of_traces, "otlp") && !is(&given("OTEL_SDK_DISABLED"), "true");
        let protocols = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
        let protocol = protocols.iter().find_map(|name| Some((name, given(name)?)));
        if let Some((name, protocol)) = protocol
            && traces
            && protocol != "http/protobuf"
        {
            let why = "spans are sent by http/protobuf, the one protocol there is here: name the collector's port for it, \
                       most often 4318";
            warn(name, &protocol, why);
        }
        let timeouts = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
        let traces_timeout = timeouts.iter().find_map(|name| given(name)?.parse().ok());
        let name = "OTEL_EXPORTER_PROMETHEUS_HOST";
        let host = given(name);
        let admin_host = match host.as_deref() {
            None => None,
            Some("localhost") => Some(Ipv4Addr::LOCALHOST.into()),
            Some(host) => {
                host.parse().inspect_err(|_| warn(name, host, "not an IP address: it is ignored")).ok()
            }
        };
        Self {
            metrics: !is(&of_metrics, "none"),
            admin_host: admin_host.filter(|host: &IpAddr| !host.is_unspecified()),
            traces,
            traces_timeout: traces_timeout.map_or(TRACES_TIMEOUT, Duration::from_millis),
            service_name: given("OTEL_SERVICE_NAME"),
            warnings,
        }
    }

    /// Logs the requests that are not met.
    pub fn warn(&self) {
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
    }

    /// Registers `target_info`, by which OpenTelemetry's Prometheus exporter says whose metrics these are. `name` is that
    /// of a service without one.
    pub fn register(&self, registry: &mut Registry, name: &str, version: &str) {
        let name = self.service_name.as_deref().unwrap_or(name);
        let labels = [("service_name", name), ("service_version", version)];
        let labels = labels.map(|(label, value)| (label.to_owned(), value.to_owned()));
        registry.register("target", "Whose metrics these are", Info::new(labels.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Otel {
        Otel::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn porchs_manifests_ask_for_what_there_is() {
        let nothing = Otel {
            metrics: true,
            admin_host: None,
            traces: false,
            traces_timeout: TRACES_TIMEOUT,
            service_name: None,
            warnings: Vec::new(),
        };
        assert_eq!(read(&[]), nothing);
        let porch = [
            ("OTEL_METRICS_EXPORTER", "prometheus"),
            ("OTEL_EXPORTER_PROMETHEUS_HOST", "0.0.0.0"),
            ("OTEL_TRACES_EXPORTER", "none"),
            ("OTEL_SERVICE_NAME", "porch-function-runner"),
        ];
        assert_eq!(
            read(&porch),
            Otel { service_name: Some("porch-function-runner".to_owned()), ..nothing.clone() }
        );
        let empty = porch.map(|(name, _)| (name, " "));
        assert_eq!(read(&empty), nothing);
    }

    #[test]
    fn only_none_turns_metrics_off() {
        for (value, metrics, warnings) in [
            ("none", false, 0),
            ("None", false, 0),
            ("Prometheus", true, 0),
            ("otlp", true, 1),
            ("prometheus,otlp", true, 1),
            ("none,otlp", true, 1),
        ] {
            let read = read(&[("OTEL_METRICS_EXPORTER", value)]);
            assert_eq!((read.metrics, read.warnings.len()), (metrics, warnings), "{value}");
        }
    }

    #[test]
    fn what_is_not_done_is_said() {
        let read = read(&[("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_PROMETHEUS_HOST", "here")]);
        let expected = [
            "OTEL_TRACES_EXPORTER=\"zipkin\": spans are made for otlp, nothing else; the trace context of calls is passed on",
            "OTEL_EXPORTER_PROMETHEUS_HOST=\"here\": not an IP address: it is ignored",
        ];
        assert_eq!(read.warnings, expected);
        assert_eq!(read.admin_host, None);
    }

    #[test]
    fn spans_are_made_for_otlp_unless_it_is_all_off() {
        let on = ("OTEL_TRACES_EXPORTER", "otlp");
        for (variables, traces, warned) in [
            (vec![on], true, None),
            (vec![("OTEL_TRACES_EXPORTER", "none")], false, None),
            (vec![("OTEL_TRACES_EXPORTER", "otlp,console")], false, Some("OTEL_TRACES_EXPORTER")),
            (vec![on, ("OTEL_SDK_DISABLED", "True")], false, None),
            (vec![on, ("OTEL_SDK_DISABLED", "false")], true, None),
            (vec![on, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")], true, None),
            (vec![on, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], true, Some("OTEL_EXPORTER_OTLP_PROTOCOL")),
            (vec![("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], false, None),
            (
                vec![
                    on,
                    ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
                    ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
                ],
                true,
                None,
            ),
        ] {
            let read = read(&variables);
            let named = read.warnings.first().and_then(|text| Some(text.split_once('=')?.0));
            assert_eq!((read.traces, named), (traces, warned), "{variables:?}");
        }
    }

    #[test]
    fn a_collector_has_its_time() {
        let (own, all) = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT");
        for (variables, milliseconds) in [
            (vec![(own, "500"), (all, "700")], 500),
            (vec![(own, "soon"), (all, "700")], 700),
            (vec![], 10_000),
        ] {
            let timeout = read(&variables).traces_timeout;
            assert_eq!(timeout, Duration::from_millis(milliseconds), "{variables:?}");
        }
    }

    #[test]
    fn the_host_is_an_address() {
        for (value, host) in [
            ("127.0.0.1", Some("127.0.0.1")),
            ("localhost", Some("127.0.0.1")),
            ("::1", Some("::1")),
            ("::", None),
        ] {
            let read = read(&[("OTEL_EXPORTER_PROMETHEUS_HOST", value)]);
            assert_eq!(read.admin_host, host.map(|host| host.parse().unwrap()), "{value}");
            assert!(read.warnings.is_empty(), "{value}");
        }
    }

    #[test]
    fn the_service_is_named_as_opentelemetry_does() {
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
