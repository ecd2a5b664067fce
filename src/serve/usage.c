/* What answers of every form have in common: how JSON is added to them, and their usage. */
#include "serve/job.h"

void wn_job_add_json(struct wn_text *out, json_t *value, const char *before, const char *after) {
  char *text = value ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
  json_decref(value);
  if (text)
    wn_text_add(out, "%s%s%s", before, text, after);
  else
    out->failed = true;
  free(text);
}

/* What the caches kept of the contexts: an extension of the API. */
static json_t *answer_kept(const struct wn_serve_model *m, const struct wn_serve_job *job) {
  const wn_model_config *config = wn_model_config_get(m->model);
  json_int_t cache = 0, full = 0, evicted = 0, cached = 0;
  json_t *kept = json_array();
  for (int i = 0; i < job->count; i++) {
    const struct wn_serve_choice *c = &job->choices[i];
    cache += (json_int_t)c->held_bytes;
    cached += c->cached;
    full += (json_int_t)c->full_bytes;
    for (int64_t l = 0; l < config->layers; l++) {
      const int64_t held = c->kept ? c->kept[l] : c->seen;
      evicted += c->seen - held;
      if (i == 0) json_array_append_new(kept, json_integer(held));
    }
  }
  json_t *messages = job->count > 0 ? json_incref(job->choices[0].messages) : NULL;
  return json_pack("{s:I, s:I, s:o, s:I, s:I, s:o*}", "cache_bytes", cache, "full_cache_bytes", full, "tokens_kept",
                   kept, "evicted", evicted, "cached_tokens", cached, "messages", messages);
}

json_t *wn_job_usage(const struct wn_serve_model *m, const struct wn_serve_job *job) {
  json_int_t completion = 0, cached = 0, accepted = 0, rejected = 0, thoughts = 0;
  for (int i = 0; i < job->count; i++) {
    const struct wn_serve_choice *c = &job->choices[i];
    completion += c->tokens, accepted += c->accepted, rejected += c->drafted - c->accepted;
    thoughts += c->thought_tokens;
  }
  for (int i = 0; i < job->count; i += (int)job->request.n)
    cached += job->choices[i].cached; /* each prompt counts once */
  return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I, s:I, s:I}, s:o}", "prompt_tokens", (json_int_t)job->prompt_tokens,
                   "completion_tokens", completion, "total_tokens", (json_int_t)job->prompt_tokens + completion,
                   "prompt_tokens_details", "cached_tokens", cached, "completion_tokens_details", "reasoning_tokens",
                   thoughts, "accepted_prediction_tokens", accepted, "rejected_prediction_tokens", rejected, "winnow",
                   answer_kept(m, job));
}
