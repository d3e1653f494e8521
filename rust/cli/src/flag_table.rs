//! The one flag table of Proa, as data: every flag, its names, type, default, help, and whether it is built.
//!
//! Limits of requests and connections are not repeated here: their rows come from the crate `limits`. The
//! environment variable and the configuration key of a flag follow from its name. Knows no parsing.

use crate::flag::{Flag, Group, Kind};

use Group::{Engine, Extras, Http, Model, Process, Replies, Scheduling, Text};
use Kind::{Count, Json, Number, Switch, Texts, Word};

const MAX_BYTES: i64 = 1 << 50;
const ON: &[&str] = &["true"];
const OFF: &[&str] = &["false"];
const AUTO: &[&str] = &["auto"];
const NONE: &[&str] = &[""];
const ONE: &[&str] = &["1"];
/// Both values hold here, because the thing that would be switched does not exist.
const EITHER: &[&str] = &["true", "false"];

const HUB: &str = "downloads from a hub (give a GGUF file or a folder)";
const KEYS: &str = "API keys";
const TLS: &str = "TLS (put a reverse proxy in front)";
const CORS: &str = "CORS";
const SPECULATION: &str = "speculative decoding";
const LORA: &str = "LoRA adapters";
const TOOLS: &str = "tool calling";
const PARALLEL: &str = "more than one device";
const GRAPHS: &str = "CUDA graphs";
const EXPERTS: &str = "expert parallelism";
const REMOTE: &str = "engines over TCP";
const LOGGING: &str = "this kind of log line";

/// The rows that are no limits.
#[rustfmt::skip]
pub const FLAGS: &[Flag] = &[
    // The model and where it comes from
    Flag::new("model", Model, Kind::Text, "", "GGUF file or folder with safetensors; none = a small default model")
        .also(&["--model-path", "--model-id", "-m", "-hf"]),
    Flag::new("served_model_name", Model, Texts, "", "name clients use, may repeat; the first is echoed; none = MODEL")
        .also(&["--alias", "-a"]),
    Flag::new("load_format", Model, Word(&["auto", "gguf", "safetensors", "dummy"]), "auto", "dummy = generated weights"),
    Flag::new("dtype", Model, Word(&["auto", "float32", "bfloat16", "float16"]), "auto", "type of activations and of expanded weights"),
    Flag::new("max_model_len", Model, Count(-1, 16_777_216), "", "prompt and output tokens of a request; -1 or none = what memory holds")
        .also(&["--ctx-size", "--context-length", "-c"]),
    Flag::new("seed", Model, Count(i64::MIN, i64::MAX), "", "base seed of requests that name none; none = from the OS").also(&["--random-seed"]),
    Flag::new("tokenizer", Model, Kind::Text, "", "tokenizer from elsewhere").also(&["--tokenizer-path"])
        .later("a tokenizer apart from the model", NONE),
    Flag::new("revision", Model, Kind::Text, "", "revision on a hub").later(HUB, NONE),
    Flag::new("download_dir", Model, Kind::Text, "", "folder for downloads").later(HUB, NONE),
    Flag::new("hf_token", Model, Kind::Text, "", "token of a hub").later(HUB, NONE),
    Flag::new("hf_overrides", Model, Json, "{}", "replaces values of config.json").later("overriding config.json", &["{}"]),
    Flag::new("quantization", Model, Kind::Text, "auto", "quantised weights; GGUF types are read from the file").also(&["-q"])
        .later("quantising at load (GGUF files are read as they are)", AUTO),
    Flag::new("runner", Model, Word(&["auto", "generate", "pooling"]), "auto", "what the model is used for").later("pooling models", &["auto", "generate"]),
    Flag::new("convert", Model, Word(&["auto", "none", "embed", "classify"]), "auto", "use a generating model otherwise").later("pooling models", &["auto", "none"]),
    Flag::new("trust_remote_code", Model, Switch, "false", "run code from the model's folder")
        .refused("no code of a model is run", OFF),
    Flag::new("generation_config", Model, Kind::Text, "auto", "auto = the model's sampling defaults; none or vllm = neutral ones"),
    Flag::new("override_generation_config", Model, Json, "{}", "sampling defaults as JSON, over the model's"),

    // Listeners, keys, TLS, CORS
    Flag::new("host", Http, Texts, "127.0.0.1", "address to listen on, may repeat").also(&["--hostname"]),
    Flag::new("port", Http, Count(0, 65_535), "8000", "port to listen on; 0 = any free one"),
    Flag::new("uds", Http, Kind::Text, "", "unix socket to listen on").later("listening on a unix socket", NONE),
    Flag::new("root_path", Http, Kind::Text, "", "prefix of all routes").later("a route prefix", NONE),
    Flag::new("allowed_origins", Http, Texts, "", "CORS origins").also(&["--cors-origins", "--cors-allow-origin"]).later(CORS, NONE),
    Flag::new("allowed_methods", Http, Texts, "", "CORS methods").later(CORS, NONE),
    Flag::new("allowed_headers", Http, Texts, "", "CORS headers").later(CORS, NONE),
    Flag::new("allow_credentials", Http, Switch, "false", "CORS credentials").later(CORS, OFF),
    Flag::new("api_key", Http, Texts, "", "key of users, may repeat").later(KEYS, NONE),
    Flag::new("admin_api_key", Http, Texts, "", "key of administrators, may repeat").later(KEYS, NONE),
    Flag::new("api_key_file", Http, Kind::Text, "", "file of keys").later(KEYS, NONE),
    Flag::new("ssl_certfile", Http, Kind::Text, "", "TLS certificate").also(&["--ssl-cert-file"]).later(TLS, NONE),
    Flag::new("ssl_keyfile", Http, Kind::Text, "", "TLS key").also(&["--ssl-key-file"]).later(TLS, NONE),
    Flag::new("ssl_ca_certs", Http, Kind::Text, "", "TLS roots for client certificates").later(TLS, NONE),
    Flag::new("metrics_public", Http, Switch, "false", "serve metrics without a key").later(KEYS, EITHER),
    Flag::new("metrics_namespace", Http, Word(&["proa", "vllm"]), "proa", "first word of metric names"),
    Flag::new("kv_cache_metrics", Http, Switch, "false", "series of KV block lifetimes").later("series of KV block lifetimes", OFF),
    Flag::new("custom_histogram_buckets", Http, Json, "{}", "other histogram buckets").later("histogram buckets of your own", &["{}"]),
    Flag::new("unknown_fields", Http, Word(&["error", "report"]), "error", "refuse unknown request fields, or name them in the reply"),
    Flag::new("api_server_count", Http, Count(0, 1024), "1", "front-end processes")
        .refused("the front end is one process with many threads", ONE),
    Flag::new("grpc", Http, Switch, "false", "serve gRPC").later("gRPC", OFF),
    Flag::new("grpc_port", Http, Count(0, 65_535), "", "port of gRPC").later("gRPC", NONE),

    // Device, memory, threads, kernels
    Flag::new("device", Engine, Word(&["auto", "cpu", "cuda", "xpu", "null"]), "auto", "auto = cuda if there is one, else cpu; null = no model, tokens at once (tests)"),
    Flag::new("device_ids", Engine, Kind::Text, "auto", "which devices").later("choosing among devices (set CUDA_VISIBLE_DEVICES)", AUTO),
    Flag::new("executor", Engine, Word(&["auto", "cpu", "torch", "null"]), "auto", "what runs a step; auto = by device"),
    Flag::new("threads", Engine, Count(1, 4_096), "", "CPU threads of the engine; none = the cores it may use").also(&["-t"]),
    Flag::new("gpu_memory_utilization", Engine, Number(0.05, 1.0), "0.92", "part of device memory for weights and KV cache")
        .also(&["--mem-fraction-static", "--cuda-memory-fraction"]),
    Flag::new("kv_cache_memory_bytes", Engine, Count(1, MAX_BYTES), "", "size of the KV cache; overrides the line above"),
    Flag::new("block_size", Engine, Count(1, 256), "16", "tokens of a KV block, a power of two"),
    Flag::new("kv_cache_dtype", Engine, Word(&["auto", "float32", "bfloat16", "float16"]), "auto", "type of the KV cache"),
    Flag::new("kernel", Engine, Texts, "", "OP=IMPL, may repeat: force the implementation of one op"),
    Flag::new("debug_kernels", Engine, Switch, "false", "check every op against its reference").later("checking ops while serving", OFF),
    Flag::new("cpu_isa", Engine, Word(&["auto", "portable", "avx2", "avx512", "amx"]), "auto", "force an instruction set").later("kernels of our own on the CPU", AUTO),
    Flag::new("cpu_activations", Engine, Word(&["auto", "int8", "f32"]), "auto", "activations against quantised weights").later("kernels of our own on the CPU", AUTO),
    Flag::new("batch_invariant", Engine, Switch, "false", "same bits alone and in a batch on CUDA").later("batch invariance on CUDA", OFF),
    Flag::new("enforce_eager", Engine, Switch, "false", "no graphs").later(GRAPHS, EITHER),
    Flag::new("cudagraph_capture_sizes", Engine, Kind::Text, "", "batch sizes to capture").later(GRAPHS, NONE),
    Flag::new("compilation_config", Engine, Json, "{}", "compilation").also(&["-O"]).later(GRAPHS, &["{}"]),
    Flag::new("attention_backend", Engine, Kind::Text, "auto", "attention kernels").later("naming attention backends (use --kernel OP=IMPL)", AUTO),
    Flag::new("tensor_parallel_size", Engine, Count(1, 1024), "1", "devices that share a layer").also(&["--tp", "--tp-size", "--num-shard", "-tp"]).later(PARALLEL, ONE),
    Flag::new("pipeline_parallel_size", Engine, Count(1, 1024), "1", "devices in a row").also(&["--pp", "--pp-size", "-pp"]).later(PARALLEL, ONE),
    Flag::new("data_parallel_size", Engine, Count(1, 1024), "1", "copies of the model").also(&["--dp", "--dp-size", "-dp"]).later(PARALLEL, ONE),
    Flag::new("enable_expert_parallel", Engine, Switch, "false", "spread experts").later(EXPERTS, OFF),
    Flag::new("prefill_context_parallel_size", Engine, Count(1, 1024), "1", "devices that share a prompt").later(PARALLEL, ONE),
    Flag::new("decode_context_parallel_size", Engine, Count(1, 1024), "1", "devices that share a context").later(PARALLEL, ONE),
    Flag::new("enable_eplb", Engine, Switch, "false", "balance experts").later(EXPERTS, OFF),
    Flag::new("eplb_config", Engine, Json, "{}", "balance of experts").later(EXPERTS, &["{}"]),
    Flag::new("moe_backend", Engine, Kind::Text, "auto", "kernels of experts").later(EXPERTS, AUTO),
    Flag::new("enable_elastic_ep", Engine, Switch, "false", "change the number of ranks while serving")
        .refused("the number of ranks is fixed at start", OFF),
    Flag::new("python", Engine, Kind::Text, "", "Python that runs the engine; none = python3 on PATH"),

    // Batching, caching, speculation
    Flag::new("max_num_seqs", Scheduling, Count(1, 65_536), "", "most sequences running at once; none = by device")
        .also(&["--max-running-requests", "--parallel", "-np"]),
    Flag::new("max_num_batched_tokens", Scheduling, Count(1, 1_048_576), "", "most tokens of one step; none = by device")
        .also(&["--chunked-prefill-size", "--max-batch-prefill-tokens", "-b"]),
    Flag::new("max_prefill_chunk", Scheduling, Count(1, 1_048_576), "", "most tokens of one prompt in a step; none = the step's budget"),
    Flag::new("enable_prefix_caching", Scheduling, Switch, "true", "re-use the KV blocks of equal prefixes"),
    Flag::new("prefix_caching_hash_algo", Scheduling, Word(&["sha256"]), "sha256", "hash of prefix blocks"),
    Flag::new("prefix_cache_isolation", Scheduling, Word(&["none", "key"]), "none", "key = prefixes are shared within an API key only").later(KEYS, &["none"]),
    Flag::new("enable_chunked_prefill", Scheduling, Switch, "true", "prompts enter in chunks").refused("every prompt enters in chunks here; a large --max-num-batched-tokens makes them whole", ON),
    Flag::new("async_scheduling", Scheduling, Switch, "true", "plan a step while one runs").refused("the engine always plans one step ahead", ON),
    Flag::new("scheduling_policy", Scheduling, Word(&["fcfs", "priority"]), "fcfs", "who goes first").also(&["--schedule-policy"]),
    Flag::new("stream_interval", Scheduling, Count(1, 1024), "1", "tokens of one stream event").later("gathering tokens of a stream", ONE),
    Flag::new("speculative_config", Scheduling, Json, "", "speculation as JSON").later(SPECULATION, NONE),
    Flag::new("spec_method", Scheduling, Kind::Text, "", "method of speculation").later(SPECULATION, NONE),
    Flag::new("spec_model", Scheduling, Kind::Text, "", "draft model").later(SPECULATION, NONE),
    Flag::new("spec_tokens", Scheduling, Count(0, 64), "", "draft tokens").later(SPECULATION, &["", "0"]),

    // Chat templates, tools, reasoning, grammars
    Flag::new("chat_template", Text, Kind::Text, "", "file of a chat template; none = the model's").also(&["--chat-template-file"]),
    Flag::new("jinja", Text, Switch, "true", "templates are Jinja").refused("every chat template is Jinja", ON),
    Flag::new("chat_template_content_format", Text, Word(&["auto", "string", "openai"]), "auto", "form of message content in the template"),
    Flag::new("default_chat_template_kwargs", Text, Json, "{}", "variables of the template for requests that give none").later("template variables for all requests", &["{}"]),
    Flag::new("trust_request_chat_template", Text, Switch, "false", "requests may bring a template").later("templates in requests", OFF),
    Flag::new("tool_call_parser", Text, Kind::Text, "auto", "how tool calls are read").later(TOOLS, AUTO),
    Flag::new("enable_auto_tool_choice", Text, Switch, "true", "the model may choose tools").later(TOOLS, EITHER),
    Flag::new("tool_strict_level", Text, Word(&["auto", "envelope", "function"]), "auto", "what is enforced of a tool call").later(TOOLS, AUTO),
    Flag::new("exclude_tools_when_tool_choice_none", Text, Switch, "false", "hide tools from the template").later(TOOLS, OFF),
    Flag::new("tool_parser_plugin", Text, Kind::Text, "", "parser of your own").refused("tool formats are data records in rust/chat", NONE),
    Flag::new("reasoning_parser", Text, Kind::Text, "auto", "how reasoning is read").later("reasoning parsers", &["auto", "none"]),
    Flag::new("reasoning_parser_plugin", Text, Texts, "", "parser of your own").later("reasoning parsers", NONE),
    Flag::new("plugin_allow_any_owner", Text, Switch, "false", "plug-ins that others may write").later("reasoning parsers", OFF),
    Flag::new("reasoning_fields", Text, Word(&["both", "reasoning", "reasoning_content"]), "both", "fields that carry reasoning").later("reasoning parsers", &["both"]),
    Flag::new("structured_outputs_config", Text, Json, "{}", "grammars").later("structured outputs", &["{}"]),

    // What replies hold and what is logged of requests
    Flag::new("max_logprobs", Replies, Count(-1, 1_048_576), "20", "largest k of any logprobs field; -1 = the vocabulary"),
    Flag::new("logprobs_mode", Replies, Word(&["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]), "raw_logprobs", "which view logprobs show").later("other views of logprobs", &["raw_logprobs"]),
    Flag::new("return_tokens_as_token_ids", Replies, Switch, "false", "default of the request field"),
    Flag::new("enable_prompt_tokens_details", Replies, Switch, "true", "usage names cached tokens"),
    Flag::new("enable_force_include_usage", Replies, Switch, "false", "every stream ends with usage"),
    Flag::new("enable_per_request_metrics", Replies, Switch, "false", "timings in every reply"),
    Flag::new("enable_request_id_headers", Replies, Switch, "true", "the request's id in a header").refused("every reply carries its request id", ON),
    Flag::new("sse_keep_alive_interval", Replies, Count(0, 3600), "15", "seconds of silence in a stream before a comment; 0 = never").also(&["--sse-ping-interval"]),
    Flag::new("responses_store", Replies, Word(&["off", "memory", "journal"]), "memory", "where /v1/responses are kept").later("/v1/responses", &["memory", "off"]),

    // Life of the server
    Flag::new("config", Process, Kind::Text, "", "YAML file with the same names"),
    Flag::new("shutdown_timeout", Process, Number(0.0, 86_400.0), "30", "seconds running requests are given at SIGTERM").also(&["--graceful-termination-timeout"]),
    Flag::new("drain_delay_s", Process, Number(0.0, 3_600.0), "0", "seconds to go on accepting after SIGTERM"),
    Flag::new("watchdog_s", Process, Number(1.0, 86_400.0), "30", "seconds of silence with work pending before the engine is replaced").also(&["--watchdog-timeout"]),
    Flag::new("max_engine_restarts", Process, Count(0, 1_000), "5", "engine deaths in 10 minutes before the server gives up"),
    Flag::new("engine_start_timeout_s", Process, Number(1.0, 86_400.0), "600", "seconds without progress before a starting engine counts as dead"),
    Flag::new("health_generate_timeout_s", Process, Number(0.1, 3_600.0), "10", "time-out of /health_generate").later("/health_generate", &["10"]),
    Flag::new("enable_sleep_mode", Process, Switch, "false", "free memory on request").later("sleep mode", OFF),
    Flag::new("log_level", Process, Word(&["trace", "debug", "info", "warning", "warn", "error"]), "info", "how much is logged").also(&["--uvicorn-log-level"]),
    Flag::new("enable_log_requests", Process, Switch, "false", "log prompts").later(LOGGING, OFF),
    Flag::new("enable_log_outputs", Process, Switch, "false", "log outputs").later(LOGGING, OFF),
    Flag::new("max_log_len", Process, Count(0, 1_048_576), "2048", "characters of a logged prompt").later(LOGGING, &["2048"]),
    Flag::new("disable_access_log_for_endpoints", Process, Kind::Text, "probes", "routes without a log line").later(LOGGING, &["probes"]),
    Flag::new("disable_log_stats", Process, Switch, "false", "no statistics in the log").later(LOGGING, EITHER),
    Flag::new("headless", Process, Switch, "false", "the same as the command `proa engine`"),
    Flag::new("connect", Process, Kind::Text, "", "address of the front end, of `proa engine`"),
    Flag::new("engine_index", Process, Count(0, 65_535), "0", "place among a front end's engines, of `proa engine`"),
    Flag::new("engine_listen", Process, Kind::Text, "", "address engines connect to").later(REMOTE, NONE),
    Flag::new("wire_key_file", Process, Kind::Text, "", "key of engines over TCP").later(REMOTE, NONE),

    // Adapters, media, stores, transfers
    Flag::new("enable_lora", Extras, Switch, "false", "LoRA adapters").later(LORA, OFF),
    Flag::new("lora_modules", Extras, Texts, "", "adapters to load").later(LORA, NONE),
    Flag::new("lora_root", Extras, Kind::Text, "", "folder of adapters").later(LORA, NONE),
    Flag::new("max_loras", Extras, Count(1, 1024), "4", "adapters in one step").later(LORA, &["4"]),
    Flag::new("max_cpu_loras", Extras, Count(1, 65_536), "", "adapters in host memory").later(LORA, NONE),
    Flag::new("max_lora_rank", Extras, Count(1, 1024), "16", "largest rank").later(LORA, &["16"]),
    Flag::new("lora_embedding_policy", Extras, Word(&["refuse", "drop"]), "refuse", "adapters with embeddings").later(LORA, &["refuse"]),
    Flag::new("max_lora_bytes", Extras, Count(1, MAX_BYTES), "2147483648", "largest adapter").later(LORA, &["2147483648", "2G"]),
    Flag::new("max_metadata_header_bytes", Extras, Count(1, 1 << 20), "8192", "largest metadata header").later("request metadata in headers", &["8192"]),
    Flag::new("pooler_config", Extras, Json, "{}", "pooling").later("pooling models", &["{}"]),
    Flag::new("allowed_media_domains", Extras, Texts, "", "where media may come from").later("media", NONE),
    Flag::new("allowed_local_media_path", Extras, Kind::Text, "", "folder of media").also(&["--media-path"]).later("media", NONE),
    Flag::new("limit_mm_per_prompt", Extras, Json, "{}", "media of a prompt").later("media", &["{}"]),
    Flag::new("models_config", Extras, Kind::Text, "", "several models").also(&["--models-preset"]).later("several models in one server", NONE),
    Flag::new("session_dir", Extras, Kind::Text, "", "saved sessions").also(&["--slot-save-path"]).later("saved sessions", NONE),
    Flag::new("otlp_traces_endpoint", Extras, Kind::Text, "", "traces").later("traces", NONE),
    Flag::new("kv_transfer_config", Extras, Json, "", "KV transfer").later("KV transfer between engines", NONE),
    Flag::new("kv_offloading_size", Extras, Number(0.0, 1e6), "0", "GiB of host memory for KV blocks").later("a host tier of the KV cache", &["0", "0.0"]),
    Flag::new("cpu_offload_gb", Extras, Number(0.0, 1e6), "0", "GiB of weights on the host").later("weights on the host", &["0", "0.0"]),
];

/// Further names of limits' flags.
pub const LIMIT_ALIASES: &[(&str, &[&str])] = &[
    ("max_num_queued_reqs", &["--max-queued-requests"]),
    ("max_stop_strings", &["--max-stop-sequences"]),
    ("write_timeout_s", &["--timeout"]),
];

const GRAMMARS: &str = "structured outputs";
const POOLING: &str = "pooling models";
const MEDIA: &str = "media";
const RESPONSES: &str = "/v1/responses";
const CONNECTION_TIMES: &str = "times of idle connections and of clients that do not read";

/// Limits of features that are not built: another value than the default would be accepted and ignored.
pub const LATER_LIMITS: &[(&str, &str)] = &[
    ("max_beam_width", "beam search"),
    ("max_tools", TOOLS),
    ("max_tools_bytes", TOOLS),
    ("max_schema_bytes", GRAMMARS),
    ("max_schema_depth", GRAMMARS),
    ("max_regex_bytes", GRAMMARS),
    ("max_regex_states", GRAMMARS),
    ("max_grammar_bytes", GRAMMARS),
    ("grammar_compile_timeout_s", GRAMMARS),
    ("grammar_memory_mib", GRAMMARS),
    ("grammar_cache_mib", GRAMMARS),
    ("max_embedding_inputs", POOLING),
    ("max_image_bytes", MEDIA),
    ("max_image_pixels", MEDIA),
    ("responses_max", RESPONSES),
    ("responses_max_bytes", RESPONSES),
    ("responses_ttl_s", RESPONSES),
    ("idle_timeout_s", CONNECTION_TIMES),
    ("write_timeout_s", CONNECTION_TIMES),
];
