//! Process metrics from the kernel, with the names of the Prometheus client libraries.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Collector that reads the process metrics at each scrape.
#[derive(Clone, Copy, Debug)]
pub struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        match Usage::read() {
            Ok(usage) => usage.encode(encoder),
            Err(error) => {
                tracing::debug!(%error, "failed to read process metrics");
                Ok(())
            }
        }
    }
}

struct Usage {
    cpu_seconds: f64,
    start_time: f64,
    virtual_bytes: u64,
    resident_bytes: u64,
    open_files: u64,
    /// Maximum number of open files. `None` if the number is unlimited.
    most_files: Option<u64>,
}

impl Usage {
    fn read() -> procfs::ProcResult<Self> {
        use procfs::process::{LimitValue, Process};
        let process = Process::myself()?;
        let stat = process.stat()?;
        let ticks = |count: u64| count as f64 / procfs::ticks_per_second() as f64;
        let most_files = match process.limits()?.max_open_files.soft_limit {
            LimitValue::Value(most) => Some(most),
            LimitValue::Unlimited => None,
        };
        Ok(Usage {
            cpu_seconds: ticks(stat.utime + stat.stime),
            start_time: procfs::boot_time_secs()? as f64 + ticks(stat.starttime),
            virtual_bytes: stat.vsize,
            resident_bytes: stat.rss * procfs::page_size(),
            open_files: process.fd_count()? as u64,
            most_files,
        })
    }

    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let cpu = ConstCounter::new(self.cpu_seconds);
        let help = "CPU time in seconds";
        cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?)?;
        let gauges = [
            (
                "process_start_time_seconds",
                "Start time of the process in seconds since the Unix epoch",
                Some(self.start_time),
            ),
            ("process_virtual_memory_bytes", "Virtual memory in bytes", Some(self.virtual_bytes as f64)),
            ("process_resident_memory_bytes", "Resident memory in bytes", Some(self.resident_bytes as f64)),
            ("process_open_fds", "Number of open file descriptors", Some(self.open_files as f64)),
            ("process_max_fds", "Maximum number of open file descriptors", self.most_files.map(|most| most as f64)),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_usage_is_read_from_the_kernel() {
        let usage = Usage::read().unwrap();
        assert!(usage.resident_bytes > 0 && usage.virtual_bytes >= usage.resident_bytes);
        assert!(usage.open_files > 2 && usage.most_files.is_none_or(|most| most >= usage.open_files));
        let age = jiff::Timestamp::now().as_second() as f64 - usage.start_time;
        assert!((-2.0..86_400.0).contains(&age), "started {age} s ago");
    }
}
