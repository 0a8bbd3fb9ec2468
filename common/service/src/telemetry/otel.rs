//! OpenTelemetry's environment variables, as Porch's manifests set them on what this takes the place of. What they ask
//! for and do not get is said in the log.

use std::net::{IpAddr, Ipv4Addr};

use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// Longest value that is quoted, in characters.
const MAX_QUOTED: usize = 100;

/// What the variables say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Otel {
    /// `OTEL_METRICS_EXPORTER`: whether metrics are shown. Only `none` is no.
    pub metrics: bool,
    /// `OTEL_EXPORTER_PROMETHEUS_HOST`: where the admin port listens unless a flag says so; `None` is everywhere.
    pub admin_host: Option<IpAddr>,
    /// `OTEL_SERVICE_NAME`.
    pub service_name: Option<String>,
    /// What is asked for in vain, for the log.
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
        let name = "OTEL_METRICS_EXPORTER";
        let exporters = given(name);
        if let Some(exporters) = &exporters
            && !exporters.eq_ignore_ascii_case("none")
            && !exporters.eq_ignore_ascii_case("prometheus")
        {
            warn(
                name,
                exporters,
                "metrics are for Prometheus to read at /metrics of the admin port, nowhere else",
            );
        }
        let name = "OTEL_TRACES_EXPORTER";
        if let Some(exporters) = given(name)
            && !exporters.eq_ignore_ascii_case("none")
        {
            let why = "no spans are made here; the trace context of calls is passed on to functions";
            warn(name, &exporters, why);
        }
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
            metrics: !exporters.is_some_and(|exporters| exporters.eq_ignore_ascii_case("none")),
            admin_host: admin_host.filter(|host: &IpAddr| !host.is_unspecified()),
            service_name: given("OTEL_SERVICE_NAME"),
            warnings,
        }
    }

    /// Says in the log what is asked for in vain.
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
        let nothing = Otel { metrics: true, admin_host: None, service_name: None, warnings: Vec::new() };
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
        let read = read(&[("OTEL_TRACES_EXPORTER", "otlp"), ("OTEL_EXPORTER_PROMETHEUS_HOST", "here")]);
        let expected = [
            "OTEL_TRACES_EXPORTER=\"otlp\": no spans are made here; the trace context of calls is passed on to functions",
            "OTEL_EXPORTER_PROMETHEUS_HOST=\"here\": not an IP address: it is ignored",
        ];
        assert_eq!(read.warnings, expected);
        assert_eq!(read.admin_host, None);
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
