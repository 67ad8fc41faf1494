//! Reads the controller metrics.

use kube::ResourceExt;

use crate::harness::Controller;

const PORT: u16 = 8080;
/// Counter of the API server requests. A watch increments the counter once.
const API_REQUESTS: &str = "rest_client_requests_total";
/// Prefix of the metric series that exists for each reconciled Stack.
const RECONCILED_STACK: &str = "gotk_reconcile_duration_seconds_count{kind=\"Stack\",";

/// Metrics at one point in time. All counters are zero when the process starts.
pub struct ControllerMetrics(String);

impl ControllerMetrics {
    pub async fn read(controller: &Controller) -> ControllerMetrics {
        let pod = controller.pod().await.name_any();
        ControllerMetrics(controller.get_endpoint(&pod, PORT, "/metrics").await)
    }

    /// Returns the number of API server requests.
    pub fn api_requests(&self) -> f64 {
        let series = self.0.lines().filter(|line| line.starts_with(API_REQUESTS));
        let values = series.filter_map(|line| Some(line.rsplit_once(' ')?.1));
        values.map(|value| value.parse::<f64>().expect("the value of a metric")).sum()
    }

    /// Returns the number of Stacks that the controller has reconciled at least once.
    pub fn reconciled_stacks(&self) -> usize {
        self.0.lines().filter(|line| line.starts_with(RECONCILED_STACK)).count()
    }
}
