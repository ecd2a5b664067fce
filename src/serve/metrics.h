/* What a server counts, and how Prometheus reads it: counters, gauges, and histograms of times. Private to src/serve.
 *
 * Names of times are those that other servers give them (vLLM: time to first token, inter-token latency, request queue
 * time, end-to-end request latency), in seconds. */
#ifndef WN_SERVE_METRICS_H
#define WN_SERVE_METRICS_H

#include "base/text.h"
#include "serve/prefix.h"
#include "winnow/kv.h"

enum wn_serve_time {
  WN_TIME_FIRST,   /* from a request's arrival to the first token of its first answer */
  WN_TIME_GAP,     /* between two tokens of an answer */
  WN_TIME_QUEUE,   /* from a request's arrival to a slot for its first answer */
  WN_TIME_REQUEST, /* from a request's arrival to the end of its last answer */
  WN_TIMES
};

enum { WN_HISTOGRAM_BOUNDS = 19, WN_SERVE_POLICIES = WN_POLICY_OWN + 2 /* with the C API's own, and with none */ };

struct wn_histogram {
  uint64_t counts[WN_HISTOGRAM_BOUNDS + 1]; /* of values up to each bound; the last: beyond all */
  double sum;
};
void wn_histogram_add(struct wn_histogram *h, double value);

/* Caches under one policy. */
struct wn_serve_caches {
  uint64_t bytes, tokens; /* bytes reserved; tokens held, the mean of the layers */
};

struct wn_serve_counts {
  uint64_t requests, refused, cancelled, failed, prompt_tokens, completion_tokens;
  uint64_t drafted, accepted; /* tokens guessed, and those that were drawn */
  uint64_t cache_bytes;       /* of all present sessions */
  struct wn_prefix_counts prefix;
  int running, waiting; /* answers with a slot; answers without one */
  int jobs;
  struct wn_histogram times[WN_TIMES];
  struct wn_serve_caches caches[WN_SERVE_POLICIES]; /* by policy; the last: nothing is evicted */
};

/* Prometheus' text format, version 0.0.4. names: of the models that these are the counts of; NULL: without labels. */
void wn_metrics_text(struct wn_text *out, const struct wn_serve_counts *counts, const char *const *names, int models);

#endif
