#include "serve/props.h"

#include "winnow/version.h"

static json_t *props_special(const struct wn_serve_model *m, int32_t id) {
  char *text;
  size_t bytes;
  const char *name = wn_tokenizer_token_name(m->tok, id, &bytes);
  if (name) return json_stringn(name, bytes);
  if (id < 0 || wn_tokenizer_decode(m->ctx, m->tok, &id, 1, &text, &bytes) != WN_OK) return json_null();
  json_t *out = json_stringn(text, bytes);
  wn_text_free(text);
  return out ? out : json_null();
}

/* Adds the ends of a text, and the chat template. */
static json_t *props_texts(const struct wn_serve_model *m, json_t *out) {
  const char *template = wn_chat_source(m->tok, false);
  json_t *text = template ? json_string(template) : NULL;
  json_object_set_new(out, "bos_token", props_special(m, wn_tokenizer_bos(m->tok)));
  json_object_set_new(out, "eos_token", props_special(m, wn_tokenizer_eos(m->tok)));
  json_object_set_new(out, "chat_template", text ? text : json_null());
  return out;
}

json_t *wn_serve_tokenizer_info(const struct wn_serve_model *m) {
  return props_texts(m, json_pack("{s:s, s:i, s:n}", "kind", wn_tokenizer_kind(m->tok), "vocab_size",
                                  wn_tokenizer_vocab_size(m->tok), "pad_token"));
}

json_t *wn_serve_props(const struct wn_serve_model *m, int slots) {
  wn_generate_options o;
  wn_generate_options_init(&o, sizeof o);
  o.sampling.temperature = o.sampling.top_p = 1; /* as requests have them (request.c) */
  wn_generate_options_declared(m->model, &o);
  json_t *params =
      json_pack("{s:f, s:f, s:I, s:f, s:f, s:f, s:f, s:i, s:i, s:b}", "temperature", o.sampling.temperature, "top_p",
                o.sampling.top_p, "top_k", (json_int_t)o.sampling.top_k, "min_p", o.sampling.min_p, "repeat_penalty",
                o.repetition_penalty > 0 ? o.repetition_penalty : 1.0, "presence_penalty", 0.0, "frequency_penalty",
                0.0, "n_predict", -1, "seed", -1, "stream", 0);
  json_t *out =
      props_texts(m, json_pack("{s:{s:I, s:o}, s:i, s:s, s:{s:b, s:b}, s:s}", "default_generation_settings", "n_ctx",
                               (json_int_t)m->context, "params", params, "total_slots", slots, "model_alias", m->name,
                               "modalities", "vision", 0, "audio", 0, "build_info", wn_version()));
  const char *tools = wn_chat_source(m->tok, true);
  if (out && tools && tools != wn_chat_source(m->tok, false))
    json_object_set_new(out, "chat_template_tool_use", json_string(tools));
  return out;
}
