// A whole backend of the C door, in C++17: a language model over bytes whose next byte is drawn from numbers that a hash of
// the last three gives. It reads no weights (its models are files named `*.dice`), and honours or refuses every field.
//
// `backplane plugins new … --c` writes it under another name, as a first project.
//
// Build, beside backplane_plugin.h: c++ -std=c++17 -O2 -shared -fPIC -fvisibility=hidden -I . -o dice.so dice.cpp

#include "backplane_plugin.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

// The places that the host expects; a header that a compiler lays out otherwise does not compile.
#if BACKPLANE_MINOR == 0
static_assert(sizeof(void *) != 8 || sizeof(backplane_options) == 184, "backplane_options");
static_assert(sizeof(void *) != 8 || sizeof(backplane_model_info) == 192, "backplane_model_info");
static_assert(sizeof(void *) != 8 || sizeof(backplane_event) == 72, "backplane_event");
static_assert(sizeof(void *) != 8 || sizeof(backplane_completion) == 80, "backplane_completion");
static_assert(sizeof(void *) != 8 || sizeof(backplane_api_v1) == 224, "backplane_api_v1");
#endif

struct backplane_error {
  uint32_t code;
  std::string message, field, action;
};

struct backplane_backend {
  std::string misconfigured; // empty: its options are right
};

namespace {

constexpr uint32_t VOCABULARY = 256;
constexpr uint32_t LONGEST = 4096;
constexpr size_t BATCH = 32; // prompt tokens between two questions whether to stop

std::string text(backplane_text text) { return text.size ? std::string(text.data, text.size) : std::string(); }
backplane_text lend(const std::string &text) { return {text.data(), text.size()}; }

// Thrown inside, told at the entry.
struct Failure {
  uint32_t code;
  std::string message, field;
};

[[noreturn]] void fail(uint32_t code, std::string message, std::string field = "") {
  throw Failure{code, std::move(message), std::move(field)};
}

[[noreturn]] void unsupported(const std::string &field) {
  fail(BACKPLANE_UNSUPPORTED_FIELD, "dice can't honour the request field `" + field + "`", field);
}

// Runs an entry: no exception leaves it.
template <typename Run> backplane_error *guarded(Run run) {
  try {
    run();
    return nullptr;
  } catch (const Failure &failure) {
    return new (std::nothrow) backplane_error{failure.code, failure.message, failure.field, ""};
  } catch (const std::bad_alloc &) {
    return new (std::nothrow) backplane_error{BACKPLANE_OUT_OF_MEMORY, "no memory", "", ""};
  } catch (const std::exception &exception) {
    return new (std::nothrow) backplane_error{BACKPLANE_PANICKED, exception.what(), "", ""};
  } catch (...) {
    return new (std::nothrow) backplane_error{BACKPLANE_PANICKED, "an exception without a message", "", ""};
  }
}

// Refuses the first key of a JSON object that should have none.
void refuse_extra(backplane_text json) {
  const std::string object = text(json);
  const size_t begin = object.find('"');
  if (begin != std::string::npos) unsupported(object.substr(begin + 1, object.find('"', begin + 1) - begin - 1));
}

std::vector<uint32_t> tokens_of(const std::string &bytes) {
  std::vector<uint32_t> tokens;
  for (unsigned char byte : bytes) tokens.push_back(byte);
  return tokens;
}

// Logits after the last three tokens: printable bytes only, so that any text is whole characters.
std::vector<float> logits_after(const std::vector<uint32_t> &tokens) {
  uint64_t state = 0x9e3779b97f4a7c15ull;
  for (size_t back = std::min<size_t>(3, tokens.size()); back > 0; --back)
    state = (state ^ tokens[tokens.size() - back]) * 0xbf58476d1ce4e5b9ull;
  std::vector<float> logits(VOCABULARY, -100.0f);
  for (uint32_t token = ' '; token < 127; ++token) {
    uint64_t mixed = (state + token) * 0x94d049bb133111ebull;
    mixed ^= mixed >> 31;
    logits[token] = static_cast<float>(mixed % 100000) / 12500.0f; // 0 to 8
  }
  return logits;
}

std::vector<float> logprobs_of(const std::vector<float> &logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - largest);
  std::vector<float> all;
  for (float logit : logits) all.push_back(static_cast<float>(logit - largest - std::log(sum)));
  return all;
}

// The `count` likeliest, likeliest first; of equals the smaller id.
std::vector<uint32_t> likeliest(const std::vector<float> &values, size_t count) {
  std::vector<uint32_t> ids(values.size());
  for (uint32_t id = 0; id < ids.size(); ++id) ids[id] = id;
  std::stable_sort(ids.begin(), ids.end(), [&](uint32_t a, uint32_t b) { return values[a] > values[b]; });
  ids.resize(std::min(count, ids.size()));
  return ids;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace

struct backplane_model {
  std::string name;
  uint32_t context;
  std::atomic<bool> closed{false};
  std::atomic<uint64_t> requests{0}, generated{0};

  void check_open() const {
    if (closed) fail(BACKPLANE_CLOSED, name + ": the model is closed");
  }

  std::vector<uint32_t> read(const backplane_prompt *prompt) const {
    check_open();
    std::vector<uint32_t> tokens =
        prompt->text ? tokens_of(text(*prompt->text)) : std::vector<uint32_t>(prompt->tokens, prompt->tokens + prompt->tokens_count);
    if (tokens.empty()) fail(BACKPLANE_INVALID_REQUEST, "empty prompt: expected at least one token", "prompt");
    for (uint32_t token : tokens)
      if (token >= VOCABULARY)
        fail(BACKPLANE_INVALID_REQUEST, "prompt: token " + std::to_string(token) + " is outside the vocabulary of 256", "prompt");
    if (tokens.size() >= context)
      fail(BACKPLANE_CONTEXT_OVERFLOW,
           "the prompt has " + std::to_string(tokens.size()) + " tokens and the context " + std::to_string(context), "prompt");
    return tokens;
  }

  static std::string render(const backplane_chat *chat) {
    if (chat->tools_json) unsupported("tools");
    refuse_extra(chat->template_options_json);
    if (chat->messages_count == 0) fail(BACKPLANE_INVALID_REQUEST, "messages: none", "messages");
    std::string rendered;
    for (size_t i = 0; i < chat->messages_count; ++i) {
      const backplane_message *message = chat->messages[i];
      refuse_extra(message->extra_json);
      rendered += text(message->role) + ": " + (message->content ? text(*message->content) : "") + "\n";
    }
    return rendered + "assistant: ";
  }

  void generate(std::vector<uint32_t> tokens, const backplane_options *options, const backplane_sink *sink, backplane_completion *out);
};

namespace {

struct Settings {
  float temperature = 0.8f;
  std::vector<std::string> stop;
  std::vector<uint32_t> stop_tokens;

  explicit Settings(const backplane_options *options) {
    const std::pair<const char *, const void *> refused[] = {
        {"top_k", options->top_k}, {"top_p", options->top_p}, {"min_p", options->min_p},
        {"repeat_penalty", options->repeat_penalty}, {"repeat_last_n", options->repeat_last_n},
        {"presence_penalty", options->presence_penalty}, {"frequency_penalty", options->frequency_penalty},
        {"grammar", options->grammar_kind}};
    for (const auto &[field, given] : refused)
      if (given) unsupported(field);
    if (options->logit_bias_count) unsupported("logit_bias");
    refuse_extra(options->extra_json);
    if (options->temperature) temperature = *options->temperature;
    if (!std::isfinite(temperature) || temperature < 0)
      fail(BACKPLANE_INVALID_REQUEST, "temperature: expected 0 or more", "temperature");
    for (size_t i = 0; i < options->stop_count; ++i) {
      if (options->stop[i].size == 0) fail(BACKPLANE_INVALID_REQUEST, "stop: an empty stop string", "stop");
      stop.push_back(text(options->stop[i]));
    }
    stop_tokens.assign(options->stop_tokens, options->stop_tokens + options->stop_tokens_count);
    if (options->logprobs && *options->logprobs > 20) fail(BACKPLANE_INVALID_REQUEST, "logprobs: expected at most 20", "logprobs");
  }
};

bool tell(const backplane_sink *sink, backplane_event event) {
  event.struct_size = sizeof event;
  return sink->on_event(sink->to, &event);
}

} // namespace

void backplane_model::generate(std::vector<uint32_t> tokens, const backplane_options *options, const backplane_sink *sink,
                               backplane_completion *out) {
  const Settings settings(options);
  requests++;
  const auto start = std::chrono::steady_clock::now();
  const uint64_t prompt_tokens = tokens.size();
  const uint64_t room = context - prompt_tokens;
  const bool asked = options->max_tokens && *options->max_tokens <= room;
  const uint64_t most = asked ? *options->max_tokens : room;
  const uint64_t seed = options->seed ? *options->seed : (uint64_t(std::random_device{}()) << 32 | std::random_device{}());
  std::mt19937_64 random(seed);

  *out = {out->struct_size, BACKPLANE_FINISH_LENGTH, 0, prompt_tokens, 0, 0, seed, 0, 0, 0};
  if (most == 0) return;

  for (uint64_t done = 0; done < prompt_tokens;) {
    check_open();
    done = std::min<uint64_t>(done + BATCH, prompt_tokens);
    backplane_event event{};
    event.kind = BACKPLANE_EVENT_PREFILL;
    event.done = done;
    event.total = prompt_tokens;
    if (sink->should_stop(sink->to) || !tell(sink, event)) {
      out->finish_reason = BACKPLANE_FINISH_CANCELLED;
      return;
    }
  }
  out->prefill_s = seconds_since(start);

  std::string held; // text that may be the beginning of a stop string
  out->finish_reason = asked ? BACKPLANE_FINISH_LENGTH : BACKPLANE_FINISH_CONTEXT_FULL;
  while (out->completion_tokens < most) {
    check_open();
    if (sink->should_stop(sink->to)) {
      out->finish_reason = BACKPLANE_FINISH_CANCELLED;
      held.clear();
      break;
    }
    const std::vector<float> logits = logits_after(tokens);
    uint32_t token = likeliest(logits, 1)[0];
    if (settings.temperature > 0) {
      std::vector<double> weights;
      for (float logit : logits) weights.push_back(std::exp((logit - 8.0f) / settings.temperature));
      token = std::discrete_distribution<uint32_t>(weights.begin(), weights.end())(random);
    }
    if (std::find(settings.stop_tokens.begin(), settings.stop_tokens.end(), token) != settings.stop_tokens.end()) {
      out->finish_reason = BACKPLANE_FINISH_STOP;
      break;
    }
    tokens.push_back(token);
    out->completion_tokens++;
    generated++;
    held += static_cast<char>(token);

    // The stop string that begins first; else hold back what may become one.
    size_t cut = std::string::npos;
    for (size_t i = 0; i < settings.stop.size(); ++i) {
      const size_t at = held.find(settings.stop[i]);
      if (at < cut) cut = at, out->stop_index = i;
    }
    size_t certain = held.size();
    for (size_t from = 0; cut == std::string::npos && from < held.size() && certain == held.size(); ++from)
      for (const std::string &stop : settings.stop)
        if (stop.compare(0, held.size() - from, held, from) == 0) certain = from;
    const std::string now = held.substr(0, std::min(cut, certain));
    held.erase(0, now.size());

    std::vector<backplane_logprob> told;
    std::vector<std::string> spelled;
    if (options->logprobs) {
      const std::vector<float> all = logprobs_of(logits);
      std::vector<uint32_t> ids{token};
      for (uint32_t id : likeliest(all, *options->logprobs + 1))
        if (id != token && ids.size() <= *options->logprobs) ids.push_back(id);
      for (uint32_t id : ids) spelled.emplace_back(1, id < 128 ? static_cast<char>(id) : '?');
      for (size_t i = 0; i < ids.size(); ++i) told.push_back({ids[i], lend(spelled[i]), all[ids[i]]});
    }
    backplane_event event{};
    event.kind = BACKPLANE_EVENT_TOKEN;
    event.token = &token;
    event.text = lend(now);
    event.logprobs = told.data();
    event.logprobs_count = told.size();
    const bool go_on = tell(sink, event);
    if (cut != std::string::npos) {
      out->finish_reason = BACKPLANE_FINISH_STOP_STRING;
      held.clear();
      break;
    }
    if (!go_on) {
      out->finish_reason = BACKPLANE_FINISH_CANCELLED;
      held.clear();
      break;
    }
  }
  if (!held.empty()) {
    backplane_event event{};
    event.kind = BACKPLANE_EVENT_TEXT;
    event.text = lend(held);
    tell(sink, event);
  }
  out->decode_s = seconds_since(start) - out->prefill_s;
}

namespace {

void describe(const std::string &name, uint64_t loaded_context, backplane_model_info_fn *tell, void *to) {
  const std::string format = "dice", architecture = "dice", how = "{role}: {content}";
  const backplane_text chat_template = lend(how);
  backplane_model_info info{};
  info.struct_size = sizeof info;
  info.name = lend(name);
  info.format = lend(format);
  info.architecture = lend(architecture);
  info.context_length = LONGEST;
  info.loaded_context = loaded_context;
  info.vocabulary = VOCABULARY;
  info.chat_template = &chat_template;
  tell(to, &info);
}

bool ends_with(const std::string &text, const std::string &end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

backplane_error *backend_new(const backplane_context *context, backplane_backend **out) {
  return guarded([&] {
    auto backend = std::make_unique<backplane_backend>();
    const std::string options = text(context->options_json);
    const size_t begin = options.find('"');
    if (begin != std::string::npos)
      backend->misconfigured = "unknown option `" + options.substr(begin + 1, options.find('"', begin + 1) - begin - 1) + "`; dice has none";
    *out = backend.release();
  });
}

void backend_free(backplane_backend *backend) { delete backend; }

void backend_probe(backplane_backend *backend, backplane_verdict_fn *tell, void *to) {
  const std::string ready = "needs no device", mend = "correct the options of `dice` in the manifest";
  if (backend->misconfigured.empty())
    tell(to, BACKPLANE_AVAILABLE, lend(ready), {nullptr, 0});
  else
    tell(to, BACKPLANE_MISCONFIGURED, lend(backend->misconfigured), lend(mend));
}

backplane_error *backend_devices(backplane_backend *, backplane_device_fn *tell, void *to) {
  return guarded([&] {
    const std::string id = "cpu", name = "any processor";
    backplane_device device{};
    device.struct_size = sizeof device;
    device.id = lend(id);
    device.name = lend(name);
    device.kind = lend(id);
    tell(to, &device);
  });
}

backplane_error *backend_inspect(backplane_backend *, backplane_text path, backplane_model_info_fn *tell, void *to) {
  return guarded([&] {
    const std::string file = text(path);
    if (ends_with(file, ".dice")) describe(file, 0, tell, to);
  });
}

backplane_error *backend_load(backplane_backend *backend, backplane_text path, const backplane_load_options *options,
                              backplane_model **out) {
  return guarded([&] {
    if (!backend->misconfigured.empty()) fail(BACKPLANE_INVALID_REQUEST, backend->misconfigured);
    refuse_extra(options->extra_json);
    if (options->threads) unsupported("threads");
    if (options->parallel) unsupported("parallel");
    if (options->device && text(*options->device) != "cpu") fail(BACKPLANE_INVALID_REQUEST, "device: there is only cpu", "device");
    const std::string file = text(path);
    if (!ends_with(file, ".dice") || !std::ifstream(file))
      fail(BACKPLANE_MODEL_UNUSABLE, file + ": expected a file named *.dice that can be read");
    const uint32_t context = options->context ? *options->context : LONGEST;
    if (context < 1 || context > LONGEST)
      fail(BACKPLANE_INVALID_REQUEST, "context: " + std::to_string(context) + "; expected 1 to 4096", "context");
    auto model = std::make_unique<backplane_model>();
    model->name = file;
    model->context = context;
    *out = model.release();
  });
}

void model_free(backplane_model *model) { delete model; }

void model_info(backplane_model *model, backplane_model_info_fn *tell, void *to) {
  describe(model->name, model->context, tell, to);
}

backplane_error *model_generate(backplane_model *model, const backplane_prompt *prompt, const backplane_options *options,
                                const backplane_sink *sink, backplane_completion *out) {
  return guarded([&] { model->generate(model->read(prompt), options, sink, out); });
}

backplane_error *model_chat(backplane_model *model, const backplane_chat *chat, const backplane_options *options,
                            const backplane_sink *sink, backplane_completion *out) {
  return guarded([&] {
    const std::string rendered = backplane_model::render(chat);
    const backplane_text lent = lend(rendered);
    const backplane_prompt prompt{sizeof prompt, &lent, true, nullptr, 0};
    model->generate(model->read(&prompt), options, sink, out);
  });
}

backplane_error *model_render_chat(backplane_model *, const backplane_chat *chat, backplane_text_fn *tell, void *to) {
  return guarded([&] { tell(to, lend(backplane_model::render(chat))); });
}

backplane_error *model_classify(backplane_model *model, const backplane_prompt *prompt, uint32_t top, bool logits,
                                backplane_text extra_json, backplane_classification_fn *tell, void *to) {
  return guarded([&] {
    refuse_extra(extra_json);
    if (top > VOCABULARY) fail(BACKPLANE_INVALID_REQUEST, "top: the vocabulary has 256 tokens", "top");
    const std::vector<uint32_t> tokens = model->read(prompt);
    const std::vector<float> raw = logits_after(tokens), all = logprobs_of(raw);
    const std::vector<uint32_t> ids = likeliest(all, top);
    std::vector<std::string> spelled;
    for (uint32_t id : ids) spelled.emplace_back(1, id < 128 ? static_cast<char>(id) : '?');
    std::vector<backplane_logprob> told;
    for (size_t i = 0; i < ids.size(); ++i) told.push_back({ids[i], lend(spelled[i]), all[ids[i]]});
    tell(to, tokens.size(), told.data(), told.size(), logits ? raw.data() : nullptr, logits ? raw.size() : 0);
  });
}

backplane_error *model_tokenize(backplane_model *model, backplane_text bytes, bool, bool, backplane_tokens_fn *tell, void *to) {
  return guarded([&] {
    model->check_open();
    const std::vector<uint32_t> tokens = tokens_of(text(bytes));
    tell(to, tokens.data(), tokens.size());
  });
}

backplane_error *model_detokenize(backplane_model *model, const uint32_t *tokens, size_t count, bool, backplane_text_fn *tell,
                                  void *to) {
  return guarded([&] {
    model->check_open();
    std::string bytes;
    for (size_t i = 0; i < count; ++i) {
      if (tokens[i] >= VOCABULARY)
        fail(BACKPLANE_INVALID_REQUEST, "token " + std::to_string(tokens[i]) + " is outside the vocabulary of 256", "tokens");
      bytes += static_cast<char>(tokens[i]);
    }
    tell(to, lend(bytes));
  });
}

void model_metrics(backplane_model *model, backplane_metric_fn *tell, void *to) {
  const std::string requests = "requests_total", generated = "tokens_generated_total";
  tell(to, lend(requests), static_cast<double>(model->requests));
  tell(to, lend(generated), static_cast<double>(model->generated));
}

backplane_error *model_close(backplane_model *model) {
  model->closed = true;
  return nullptr;
}

uint32_t error_code(const backplane_error *error) { return error->code; }
backplane_text error_message(const backplane_error *error) { return lend(error->message); }
backplane_text error_field(const backplane_error *error) { return lend(error->field); }
backplane_text error_action(const backplane_error *error) { return lend(error->action); }
void error_free(backplane_error *error) { delete error; }

const backplane_api_v1 API = {
    sizeof(backplane_api_v1), BACKPLANE_MAJOR, BACKPLANE_MINOR, {"dice", sizeof "dice" - 1}, {"1.0.0", 5},
    backend_new, backend_free, backend_probe, backend_devices, backend_inspect, backend_load,
    model_free, model_info, model_generate, model_chat, model_render_chat, model_classify, model_tokenize, model_detokenize,
    model_metrics, model_close,
    error_code, error_message, error_field, error_action, error_free,
    nullptr,
};

} // namespace

extern "C" BACKPLANE_EXPORT const backplane_api_v1 *backplane_plugin_v1(uint32_t major, uint32_t) {
  return major == BACKPLANE_MAJOR ? &API : nullptr;
}
