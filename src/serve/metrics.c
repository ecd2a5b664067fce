#include "serve/metrics.h"

#include <string.h>

#include "base/number.h"

/* Seconds: from a token of a small model to a long prompt in a queue. */
static const double bounds[WN_HISTOGRAM_BOUNDS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                                   2.5,   5,      10,    25,   50,    100,  250, 500,  1000};

void wn_histogram_add(struct wn_histogram *h, double value) {
  int i = 0;
  while (i < WN_HISTOGRAM_BOUNDS && value > bounds[i]) i++;
  h->counts[i]++;
  h->sum += value;
}

/* The text that is being written. */
struct metrics {
  struct wn_text *out;
  const struct wn_serve_counts *counts; /* [models] */
  const char *const *names;             /* [models], or NULL */
  int models;
};

static void metrics_head(const struct metrics *x, const char *name, const char *type, const char *help) {
  wn_text_add(x->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Begins a line: the series' name and labels, of which one may be given. */
static void metrics_series(const struct metrics *x, int model, const char *name, const char *end, const char *label,
                           const char *value) {
  wn_text_add(x->out, "%s%s", name, end);
  if (x->names) {
    wn_text_add(x->out, "{model=\"");
    for (const char *c = x->names[model]; *c; c++)
      wn_text_add(x->out, "%s%c", *c == '"' || *c == '\\' || *c == '\n' ? "\\" : "", *c == '\n' ? 'n' : *c);
    wn_text_add(x->out, label ? "\"," : "\"}");
  }
  if (label) wn_text_add(x->out, "%s%s=\"%s\"}", x->names ? "" : "{", label, value);
  wn_text_add(x->out, " ");
}

static void metrics_numbers(const struct metrics *x) {
#define ROW(member)                                                                                                    \
  .at = offsetof(struct wn_serve_counts, member), .whole = sizeof(((struct wn_serve_counts *)0)->member)
  static const struct {
    const char *name, *type, *help;
    size_t at, whole; /* the member's place and size: a uint64_t or an int */
  } rows[] = {
      {"winnow_requests_total", "counter", "Requests taken.", ROW(requests)},
      {"winnow_requests_refused_total", "counter", "Requests that found the queue full.", ROW(refused)},
      {"winnow_requests_cancelled_total", "counter", "Requests whose client left.", ROW(cancelled)},
      {"winnow_requests_failed_total", "counter", "Requests that failed while they ran.", ROW(failed)},
      {"winnow_prompt_tokens_total", "counter", "Tokens of prompts.", ROW(prompt_tokens)},
      {"winnow_completion_tokens_total", "counter", "Tokens of answers.", ROW(completion_tokens)},
      {"winnow_drafted_tokens_total", "counter", "Tokens guessed ahead.", ROW(drafted)},
      {"winnow_accepted_tokens_total", "counter", "Guessed tokens that were drawn.", ROW(accepted)},
      {"winnow_answers_running", "gauge", "Answers that are being written.", ROW(running)},
      {"winnow_answers_waiting", "gauge", "Answers that wait for a slot.", ROW(waiting)},
      {"winnow_cache_bytes", "gauge", "Bytes of all caches.", ROW(cache_bytes)},
      {"winnow_prefix_prompts_total", "counter", "Prompts whose beginning was looked for.", ROW(prefix.prompts)},
      {"winnow_prefix_hits_total", "counter", "Prompts whose beginning was known.", ROW(prefix.found)},
      {"winnow_prefix_tokens_total", "counter", "Tokens of prompts that were not read again.", ROW(prefix.tokens)},
      {"winnow_prefix_states", "gauge", "States of prompts that are kept.", ROW(prefix.states)},
      {"winnow_prefix_bytes", "gauge", "Bytes of these states.", ROW(prefix.bytes)},
  };
#undef ROW
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    metrics_head(x, rows[i].name, rows[i].type, rows[i].help);
    for (int m = 0; m < x->models; m++) {
      const char *at = (const char *)&x->counts[m] + rows[i].at;
      int number;
      uint64_t value;
      memcpy(&number, at, sizeof number);
      memcpy(&value, at, rows[i].whole == sizeof value ? sizeof value : 0);
      metrics_series(x, m, rows[i].name, "", NULL, NULL);
      wn_text_add(x->out, "%llu\n", (unsigned long long)(rows[i].whole == sizeof value ? value : (uint64_t)number));
    }
  }
}

/* Policies that no answer has are left out, but for the last row, so that there always is one. */
static void metrics_caches(const struct metrics *x, const char *name, const char *help, bool bytes) {
  metrics_head(x, name, "gauge", help);
  for (int m = 0; m < x->models; m++)
    for (int p = 0; p < WN_SERVE_POLICIES; p++) {
      const struct wn_serve_caches *c = &x->counts[m].caches[p];
      const bool none = p == WN_SERVE_POLICIES - 1;
      if (c->bytes == 0 && p >= wn_policy_count() && !none) continue;
      metrics_series(x, m, name, "", "policy", none ? "none" : wn_policy_name(p));
      wn_text_add(x->out, "%llu\n", (unsigned long long)(bytes ? c->bytes : c->tokens));
    }
}

static void metrics_times(const struct metrics *x) {
  static const struct {
    const char *name, *help;
  } rows[WN_TIMES] = {
      [WN_TIME_FIRST] = {"winnow_time_to_first_token_seconds", "From a request's arrival to its first token."},
      [WN_TIME_GAP] = {"winnow_inter_token_latency_seconds", "Between two tokens of an answer."},
      [WN_TIME_QUEUE] = {"winnow_request_queue_time_seconds", "From a request's arrival to a slot."},
      [WN_TIME_REQUEST] = {"winnow_e2e_request_latency_seconds", "From a request's arrival to its answer's end."}};
  char bound[32];
  for (int t = 0; t < WN_TIMES; t++) {
    metrics_head(x, rows[t].name, "histogram", rows[t].help);
    for (int m = 0; m < x->models; m++) {
      const struct wn_histogram *h = &x->counts[m].times[t];
      unsigned long long below = 0;
      for (int i = 0; i <= WN_HISTOGRAM_BOUNDS; i++) {
        below += h->counts[i];
        wn_print(bound, sizeof bound, "%g", bounds[i % WN_HISTOGRAM_BOUNDS]);
        metrics_series(x, m, rows[t].name, "_bucket", "le", i < WN_HISTOGRAM_BOUNDS ? bound : "+Inf");
        wn_text_add(x->out, "%llu\n", below);
      }
      metrics_series(x, m, rows[t].name, "_sum", NULL, NULL);
      wn_text_add(x->out, "%.9g\n", h->sum);
      metrics_series(x, m, rows[t].name, "_count", NULL, NULL);
      wn_text_add(x->out, "%llu\n", below);
    }
  }
}

void wn_metrics_text(struct wn_text *out, const struct wn_serve_counts *counts, const char *const *names, int models) {
  const struct metrics x = {out, counts, names, models};
  metrics_numbers(&x);
  metrics_caches(&x, "winnow_policy_cache_bytes", "Bytes of the caches of answers under a policy.", true);
  metrics_caches(&x, "winnow_policy_cache_tokens", "Tokens that these caches hold now, the mean of the layers.", false);
  metrics_times(&x);
}
