// The sample with something wrong: by the number in its file's name (`hostile-7.so`), so that one build serves all.

#define backplane_plugin_v1 honest_plugin_v1
#include "dice.cpp"
#undef backplane_plugin_v1
#include <cstdlib>
#include <dlfcn.h>

namespace {

backplane_api_v1 table = API;
const backplane_text NOT_UTF8 = {"a\xff", 2};

backplane_error *tells_bad_text(backplane_model *, const backplane_prompt *, const backplane_options *, const backplane_sink *sink,
                                backplane_completion *) {
  backplane_event event{};
  event.struct_size = sizeof event;
  event.kind = BACKPLANE_EVENT_TEXT;
  event.text = NOT_UTF8;
  while (sink->on_event(sink->to, &event)) {
  }
  return nullptr;
}

backplane_error *tells_unknown_events(backplane_model *model, const backplane_prompt *prompt, const backplane_options *options,
                                      const backplane_sink *sink, backplane_completion *out) {
  backplane_event event{};
  event.struct_size = sizeof event;
  event.kind = 4711;
  sink->on_event(sink->to, &event);
  return API.model_generate(model, prompt, options, sink, out);
}

backplane_error *names_no_stop(backplane_model *, const backplane_prompt *, const backplane_options *, const backplane_sink *,
                               backplane_completion *out) {
  out->finish_reason = BACKPLANE_FINISH_STOP_STRING;
  out->stop_index = 99;
  return nullptr;
}

backplane_error *throws(backplane_model *, const backplane_prompt *, const backplane_options *, const backplane_sink *,
                        backplane_completion *) {
  return guarded([] { throw std::runtime_error("two\nlines"); });
}

int number_of_this_file() {
  Dl_info info{};
  dladdr(reinterpret_cast<void *>(&number_of_this_file), &info);
  const char *dash = strrchr(info.dli_fname, '-');
  return dash ? atoi(dash + 1) : 0;
}

} // namespace

extern "C" BACKPLANE_EXPORT const backplane_api_v1 *backplane_plugin_v1(uint32_t, uint32_t) {
  switch (number_of_this_file()) {
  case 1: return nullptr;
  case 2: table.major = 2; break;
  case 3: table.struct_size = offsetof(backplane_api_v1, error_free); break;
  case 4: table.model_chat = nullptr; break;
  case 5: table.name = NOT_UTF8; break;
  case 6: table.name = {"Loaded Dice", 11}; break;
  case 7: table.backend_new = [](const backplane_context *, backplane_backend **) -> backplane_error * { return nullptr; }; break;
  case 8: table.backend_probe = [](backplane_backend *, backplane_verdict_fn *, void *) {}; break;
  case 9: table.backend_probe = [](backplane_backend *, backplane_verdict_fn *tell, void *to) { tell(to, 0, NOT_UTF8, NOT_UTF8); }; break;
  case 10: table.backend_probe = [](backplane_backend *, backplane_verdict_fn *tell, void *to) { tell(to, 999, {"new", 3}, {nullptr, 0}); }; break;
  case 11: table.model_generate = tells_bad_text; break;
  case 12: table.model_generate = tells_unknown_events; break;
  case 13: table.model_generate = names_no_stop; break;
  case 14: table.model_generate = throws; break;
  case 15: table.backend_load = [](backplane_backend *, backplane_text, const backplane_load_options *, backplane_model **) -> backplane_error * { return nullptr; }; break;
  }
  return &table;
}
