//! Labels of `cache_config_info`.

use wire::EngineFacts;

/// The label text; unset values print `None`, as boards for Python servers expect.
pub(crate) fn cache_labels(facts: &EngineFacts) -> String {
    let cache = &facts.cache;
    let text = |value: Option<String>| value.unwrap_or_else(|| "None".to_owned());
    let switch = |value: bool| if value { "True" } else { "False" }.to_owned();
    [
        ("num_gpu_blocks", facts.num_blocks.to_string()),
        ("block_size", facts.block_size.to_string()),
        ("cache_dtype", cache.cache_dtype.clone()),
        (
            "gpu_memory_utilization",
            cache.gpu_memory_utilization.to_string(),
        ),
        ("enable_prefix_caching", switch(cache.enable_prefix_caching)),
        (
            "prefix_caching_hash_algo",
            cache.prefix_caching_hash_algo.clone(),
        ),
        (
            "num_cpu_blocks",
            text(cache.num_cpu_blocks.map(|n| n.to_string())),
        ),
        (
            "kv_offloading_backend",
            text(cache.kv_offloading_backend.clone()),
        ),
        (
            "kv_offloading_size",
            text(cache.kv_offloading_size.map(|n| n.to_string())),
        ),
    ]
    .map(|(name, value)| metrics::label(name, &value))
    .join(",")
}
