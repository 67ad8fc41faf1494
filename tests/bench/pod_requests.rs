//! Computes the CPU and the memory that pods request.

use k8s_openapi::api::core::v1::{Container, Pod};

/// Total requests of one or more pods.
#[derive(Clone, Copy, Debug, Default)]
pub struct Requests {
    /// CPU in cores.
    pub processor: f64,
    /// Memory in MiB.
    pub memory: f64,
}

impl Requests {
    /// Returns the sum of the requests that the scheduler reserves for the pods.
    pub fn of(pods: &[Pod]) -> Requests {
        pods.iter().map(Requests::of_pod).fold(Requests::default(), Requests::plus)
    }

    pub fn plus(self, other: Requests) -> Requests {
        Requests { processor: self.processor + other.processor, memory: self.memory + other.memory }
    }

    /// Init containers run one after another before the other containers. The scheduler therefore reserves either the
    /// requests of the largest init container or the sum of the other containers' requests, whichever is larger.
    fn of_pod(pod: &Pod) -> Requests {
        let Some(spec) = &pod.spec else { return Requests::default() };
        let containers = spec.containers.iter().map(Requests::of_container).fold(Requests::default(), Requests::plus);
        let init = spec.init_containers.iter().flatten().map(Requests::of_container);
        init.fold(containers, |most, next| Requests {
            processor: most.processor.max(next.processor),
            memory: most.memory.max(next.memory),
        })
    }

    fn of_container(container: &Container) -> Requests {
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let amount = |resource: &str| {
            let quantity = requests.and_then(|requests| requests.get(resource));
            quantity.map(|quantity| number(&quantity.0)).unwrap_or_default()
        };
        Requests { processor: amount("cpu"), memory: amount("memory") / (1024.0 * 1024.0) }
    }
}

impl std::fmt::Display for Requests {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:.2} cores, {:.2} GiB", self.processor, self.memory / 1024.0)
    }
}

/// Returns the value of a Kubernetes quantity.
fn number(quantity: &str) -> f64 {
    let units = [("Ki", 1024.0), ("Mi", 1024.0 * 1024.0), ("Gi", 1024.0 * 1024.0 * 1024.0), ("m", 0.001)];
    let unit = units.iter().find_map(|(unit, factor)| Some((quantity.strip_suffix(unit)?, *factor)));
    let (digits, factor) = unit.unwrap_or((quantity, 1.0));
    digits.parse::<f64>().unwrap_or_else(|_| panic!("the quantity {quantity} is a number with a known unit")) * factor
}
