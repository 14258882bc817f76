/*
 * Backplane's plugin contract as a C door, version 1.0.
 *
 * The same contract that Rust plugins see through `backplane_plugin_api`, for engines written in C, C++, CUDA or SYCL. A module is
 * a shared library that exports one function, `backplane_plugin_v1`; the host adapts it into the same `Backend` object as any other
 * plugin: selection, worker processes, the conformance suite and `plugins validate` treat both alike.
 *
 * Rules that hold for every call:
 *
 * - Threads. The host calls from any thread, many at once, on the same backend and model. Guard your state.
 * - Ownership. What the host passes is lent until the call returns: copy what you keep. What you tell through a callback is lent to
 *   the host until the callback returns: it copies. Only four things pass from you to the host, and each has its own function to
 *   free it: backends, models, errors, and nothing else.
 * - Errors. A function that can fail returns NULL for success or an error object, which belongs to the call that made it; the host
 *   reads it and frees it. An out-parameter of a call that failed is not read. There is no "last error".
 * - Exceptions. None may leave an entry: put each in `try { } catch (...) { }`. Nor may `exit`, `abort` or `longjmp`: the host
 *   would end with you, unless you run in a worker process (`isolation = "process"`).
 * - Text is UTF-8, with its size, and need not end with a zero. Paths are bytes, as the system has them.
 * - Optional numbers are pointers: NULL means "not said, use your default".
 * - Growth. Structures begin with `struct_size`, set by whoever fills them. Later minor versions add members at the end; read a
 *   member only if the size covers it (BACKPLANE_HAS). Members and enumerators are never moved or removed within version 1.
 * - Nothing is silently ignored. Refuse by name what you can't honour (BACKPLANE_UNSUPPORTED_FIELD with `field` set), members that
 *   you do not know in `extra_json` included.
 *
 * Since: everything is since 1.0 unless it says otherwise.
 */
#ifndef BACKPLANE_PLUGIN_H
#define BACKPLANE_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BACKPLANE_MAJOR 1u
#define BACKPLANE_MINOR 0u

#if defined(_WIN32)
#define BACKPLANE_EXPORT __declspec(dllexport)
#else
#define BACKPLANE_EXPORT __attribute__((visibility("default")))
#endif

/* Whether the structure that `pointer` points to is new enough to have `member`. */
#define BACKPLANE_HAS(pointer, member) \
  ((pointer)->struct_size >= BACKPLANE_END_(pointer, member))
#define BACKPLANE_END_(pointer, member) \
  ((size_t)((const char *)(&(pointer)->member + 1) - (const char *)(pointer)))

/* Text, or the bytes of a path. `data` may be NULL where `size` is 0. */
typedef struct backplane_text {
  const char *data;
  size_t size;
} backplane_text;

/* Yours; the host only passes pointers to them around. */
typedef struct backplane_backend backplane_backend;
typedef struct backplane_model backplane_model;
typedef struct backplane_error backplane_error;

/* What a backend says of itself on this machine. An unknown number counts as incompatible. */
enum {
  BACKPLANE_AVAILABLE = 0,
  BACKPLANE_DISABLED = 1,
  BACKPLANE_ABSENT = 2,
  BACKPLANE_INCOMPATIBLE = 3,
  BACKPLANE_MISSING_LIBRARY = 4,
  BACKPLANE_NO_DEVICE = 5,
  BACKPLANE_ARCHITECTURE_UNSUPPORTED = 6,
  BACKPLANE_UNTRUSTED = 7,
  BACKPLANE_MISCONFIGURED = 8,
  BACKPLANE_CRASHED = 9,
  BACKPLANE_QUARANTINED = 10
};

/* Kinds of errors. An unknown number counts as internal. */
enum {
  BACKPLANE_INTERNAL = 0,
  BACKPLANE_INVALID_REQUEST = 1,   /* the request is wrong; name the field */
  BACKPLANE_UNSUPPORTED_FIELD = 2, /* a field that can't be honoured; name it */
  BACKPLANE_CONTEXT_OVERFLOW = 3,  /* message with both counts of tokens */
  BACKPLANE_MODEL_UNUSABLE = 4,    /* the file: which, what was found, what was expected */
  BACKPLANE_TEMPLATE_REFUSED = 5,
  BACKPLANE_DEVICE = 6,
  BACKPLANE_OUT_OF_MEMORY = 7,
  BACKPLANE_BUSY = 8,
  BACKPLANE_CLOSED = 9,            /* any call that runs a model after `model_close` */
  BACKPLANE_PANICKED = 10,         /* an exception was caught at the entry */
  BACKPLANE_UNSUPPORTED = 11
};

/* Why a generation ended. */
enum {
  BACKPLANE_FINISH_STOP = 0,         /* the model's end token, or a stop token */
  BACKPLANE_FINISH_STOP_STRING = 1,
  BACKPLANE_FINISH_LENGTH = 2,       /* `max_tokens` reached */
  BACKPLANE_FINISH_CONTEXT_FULL = 3,
  BACKPLANE_FINISH_CANCELLED = 4
};

/* What a backend is made with. */
typedef struct backplane_context {
  size_t struct_size;
  backplane_text options_json; /* the plugin's `options` table of the manifest, a JSON object; refuse unknown keys (your probe
                                  then says misconfigured) */
  backplane_text module_dir;   /* path of the folder of the module file */
} backplane_context;

/* Takes a verdict: its state, one line of what was found, one line of what would mend it (may be empty). */
typedef void backplane_verdict_fn(void *to, uint32_t state, backplane_text message, backplane_text action);

typedef struct backplane_pair {
  backplane_text key;
  backplane_text value;
} backplane_pair;

typedef struct backplane_device {
  size_t struct_size;
  backplane_text id;   /* stable: a PCI address, a UUID or `cpu`; never an ordinal */
  backplane_text name;
  backplane_text kind; /* `cpu`, `gpu`, `integrated_gpu`, `remote` ... */
  const uint64_t *memory_total; /* bytes; NULL where not known */
  const uint64_t *memory_free;  /* bytes; NULL where not known */
  const backplane_pair *details;
  size_t details_count;
} backplane_device;

typedef void backplane_device_fn(void *to, const backplane_device *device);

typedef struct backplane_tensor {
  backplane_text name;
  backplane_text storage;
  const uint64_t *shape; /* outermost first */
  size_t shape_count;
  uint64_t bytes;
} backplane_tensor;

/* What a model is. Numbers that are not known are 0. */
typedef struct backplane_model_info {
  size_t struct_size;
  backplane_text name;
  backplane_text format;
  backplane_text architecture;
  backplane_text quantization;
  uint64_t parameters;
  uint64_t file_bytes;
  uint64_t context_length; /* tokens that the model was made for */
  uint64_t loaded_context; /* tokens of this instance; 0 where not loaded */
  uint64_t vocabulary;
  const backplane_text *chat_template; /* NULL: it has none */
  const backplane_text *unsupported;   /* NULL: it can be run; else one line of why not */
  const backplane_pair *details;       /* further facts in order, for people */
  size_t details_count;
  const backplane_pair *metadata;      /* of the file, in order */
  size_t metadata_count;
  const backplane_tensor *tensors;
  size_t tensors_count;
  const backplane_text *warnings;
  size_t warnings_count;
} backplane_model_info;

typedef void backplane_model_info_fn(void *to, const backplane_model_info *info);

typedef struct backplane_load_options {
  size_t struct_size;
  const uint32_t *context;  /* tokens; default: the model's, at most 4096 */
  const uint32_t *threads;
  const uint32_t *parallel; /* sequences side by side */
  const backplane_text *device; /* by its id; NULL: your choice */
  backplane_text extra_json; /* a JSON object of options of this backend alone; refuse those that you do not know */
} backplane_load_options;

typedef struct backplane_token_bias {
  uint32_t token;
  float bias;
} backplane_token_bias;

/* How tokens are chosen and when to stop. NULL is the default named with each member. */
typedef struct backplane_options {
  size_t struct_size;
  const float *temperature;       /* 0 is greedy; 0.8 */
  const uint32_t *top_k;          /* 0 keeps all; 40 */
  const float *top_p;             /* 0.95 */
  const float *min_p;             /* 0.05 */
  const float *repeat_penalty;    /* 1, which is off */
  const uint32_t *repeat_last_n;  /* 64 tokens */
  const float *presence_penalty;  /* 0 */
  const float *frequency_penalty; /* 0 */
  const uint64_t *seed;           /* drawn anew, and told in the completion */
  const backplane_token_bias *logit_bias;
  size_t logit_bias_count;
  const uint32_t *max_tokens;     /* up to the end of the context; 0 generates none */
  const backplane_text *stop;     /* texts at which to stop; not given out */
  size_t stop_count;
  const uint32_t *stop_tokens;
  size_t stop_tokens_count;
  bool ignore_end;                /* go on past the model's own end tokens */
  const uint32_t *logprobs;       /* log probabilities of the chosen token and of this many others */
  const backplane_text *grammar_kind;   /* `json_schema`, `regex`, `lark`; NULL: none */
  const backplane_text *grammar_source;
  backplane_text extra_json;      /* a JSON object; refuse what you do not know */
} backplane_options;

/* What the model is given: either text or token ids. */
typedef struct backplane_prompt {
  size_t struct_size;
  const backplane_text *text; /* NULL: `tokens` */
  bool special;               /* whether text that looks like a special token is one */
  const uint32_t *tokens;     /* taken as they are: nothing is added */
  size_t tokens_count;
} backplane_prompt;

typedef struct backplane_message {
  size_t struct_size;
  backplane_text role;
  const backplane_text *content; /* NULL: it has none (tool calls) */
  backplane_text extra_json;     /* a JSON object of its other fields, for the template */
} backplane_message;

typedef struct backplane_chat {
  size_t struct_size;
  const backplane_message *const *messages; /* pointers, since the structure may grow */
  size_t messages_count;
  const backplane_text *tools_json;    /* NULL: none */
  backplane_text template_options_json; /* a JSON object of further variables for the template */
} backplane_chat;

typedef struct backplane_logprob {
  uint32_t token;
  backplane_text text;
  float logprob; /* natural logarithm, over the whole vocabulary, before sampling changes it */
} backplane_logprob;

enum {
  BACKPLANE_EVENT_PREFILL = 0, /* `done` of `total` prompt tokens are read */
  BACKPLANE_EVENT_TOKEN = 1,   /* a token was chosen; `text` is what is certain now, and may be empty */
  BACKPLANE_EVENT_TEXT = 2     /* text that was held back and is now certain, with no new token */
};

typedef struct backplane_event {
  size_t struct_size;
  uint32_t kind;
  uint64_t done;
  uint64_t total;
  const uint32_t *token; /* NULL where you can't know it */
  backplane_text text;   /* whole characters */
  const backplane_logprob *logprobs; /* the chosen token, then the likeliest others, when asked for */
  size_t logprobs_count;
} backplane_event;

/* Takes what a generation tells. Lent for the call. Called by one thread at a time, any. */
typedef struct backplane_sink {
  size_t struct_size;
  void *to;
  bool (*on_event)(void *to, const backplane_event *event); /* false: stop; no event may come after */
  bool (*should_stop)(void *to); /* ask between batches of the prompt and between tokens; true: stop */
} backplane_sink;

/* How a generation ended. Filled by you; `struct_size` is set by the host: write only what it covers. */
typedef struct backplane_completion {
  size_t struct_size;
  uint32_t finish_reason;
  size_t stop_index; /* which of `options.stop` ended it; read only where the reason is STOP_STRING */
  uint64_t prompt_tokens;
  uint64_t cached_tokens; /* of these, taken from a cache */
  uint64_t completion_tokens; /* an end token not counted */
  uint64_t seed; /* that was used */
  double queue_s;
  double prefill_s;
  double decode_s;
} backplane_completion;

/* The likeliest next tokens, likeliest first; `logits` has the whole vocabulary, or is NULL where not asked for. */
typedef void backplane_classification_fn(void *to, uint64_t prompt_tokens, const backplane_logprob *top, size_t top_count,
                                         const float *logits, size_t logits_count);
typedef void backplane_text_fn(void *to, backplane_text text);
typedef void backplane_tokens_fn(void *to, const uint32_t *tokens, size_t count);
typedef void backplane_metric_fn(void *to, backplane_text name, double value);

/* All functions. None may be NULL but `get_extension`. It lives as long as the module, which is never unloaded. */
typedef struct backplane_api_v1 {
  size_t struct_size; /* sizeof(backplane_api_v1) */
  uint32_t major;     /* BACKPLANE_MAJOR */
  uint32_t minor;     /* BACKPLANE_MINOR */
  backplane_text name;    /* lower case, digits and `_`, such as `cpu` */
  backplane_text version; /* the plugin's own (semver) */

  /* Makes a backend. It may be freed while models that it loaded live on. */
  backplane_error *(*backend_new)(const backplane_context *context, backplane_backend **out);
  void (*backend_free)(backplane_backend *backend);

  /* Tells a verdict, exactly once, within a second or so. */
  void (*backend_probe)(backplane_backend *backend, backplane_verdict_fn *tell, void *to);

  /* Tells each device that it would use. */
  backplane_error *(*backend_devices)(backplane_backend *backend, backplane_device_fn *tell, void *to);

  /* Says what a model file is, reading no weights: tells once, or not at all where the format is another's. A file of its format
     that can't be run is told with `unsupported`; one that is broken is an error. */
  backplane_error *(*backend_inspect)(backplane_backend *backend, backplane_text path, backplane_model_info_fn *tell, void *to);

  backplane_error *(*backend_load)(backplane_backend *backend, backplane_text path, const backplane_load_options *options,
                                   backplane_model **out);

  void (*model_free)(backplane_model *model);
  void (*model_info)(backplane_model *model, backplane_model_info_fn *tell, void *to);

  /* Generates; blocks until the end. Stop (either way) takes effect within one batch of the prompt and between tokens, and ends
     the call with BACKPLANE_FINISH_CANCELLED. The host runs the requests of a batch as concurrent calls. */
  backplane_error *(*model_generate)(backplane_model *model, const backplane_prompt *prompt, const backplane_options *options,
                                     const backplane_sink *sink, backplane_completion *out);

  /* The next message of a chat, by the model's own template; and the text that it would be given. */
  backplane_error *(*model_chat)(backplane_model *model, const backplane_chat *chat, const backplane_options *options,
                                 const backplane_sink *sink, backplane_completion *out);
  backplane_error *(*model_render_chat)(backplane_model *model, const backplane_chat *chat, backplane_text_fn *tell, void *to);

  /* One forward pass: tells once. */
  backplane_error *(*model_classify)(backplane_model *model, const backplane_prompt *prompt, uint32_t top, bool logits,
                                     backplane_text extra_json, backplane_classification_fn *tell, void *to);

  /* Both tell once. Bytes of token ids are UTF-8 unless the ids cut a character. */
  backplane_error *(*model_tokenize)(backplane_model *model, backplane_text text, bool add_special, bool parse_special,
                                     backplane_tokens_fn *tell, void *to);
  backplane_error *(*model_detokenize)(backplane_model *model, const uint32_t *tokens, size_t count, bool special,
                                       backplane_text_fn *tell, void *to);

  void (*model_metrics)(backplane_model *model, backplane_metric_fn *tell, void *to);

  /* Ends running generations, which err as closed, and frees what the model holds; a second call does nothing. */
  backplane_error *(*model_close)(backplane_model *model);

  /* Reads and frees an error. Its texts live as long as it does. */
  uint32_t (*error_code)(const backplane_error *error);
  backplane_text (*error_message)(const backplane_error *error);
  backplane_text (*error_field)(const backplane_error *error);  /* empty where no field is at fault */
  backplane_text (*error_action)(const backplane_error *error); /* may be empty */
  void (*error_free)(backplane_error *error);

  /* A table of functions by name and version, or NULL. The host asks for none in 1.0. May be NULL itself. */
  const void *(*get_extension)(const char *name);
} backplane_api_v1;

/* The one exported symbol. Gets the version of the host; returns the table, or NULL where the plugin can't work with that host. The
   host refuses a table of another major version. */
BACKPLANE_EXPORT const backplane_api_v1 *backplane_plugin_v1(uint32_t major, uint32_t minor);

#ifdef __cplusplus
}
#endif

#endif
