/* What a cache's format costs in quality: sessions of one model, one with each format, read the same text token by
 * token, in separate pieces. JSON on standard output.
 *
 *   bench_cache_format MODEL TEXT TOKENS PIECE THREADS [float]
 *
 * TEXT: a file, of which the first TOKENS tokens are read. float: weights as float32 (without 8-bit products, whose
 * rounding amplifies every small difference). Reports for each format, against floats, the mean and largest
 * |difference| of the logits over all positions, the share of positions with the same most likely token, the mean loss
 * and its difference with standard errors over pieces, and the bytes of a cache. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <winnow/context.h>
#include <winnow/kv.h>
#include <winnow/model.h>

static int give_up(const wn_context *ctx, const char *what) {
  fprintf(stderr, "bench_cache_format: %s: %s\n", what, ctx ? wn_context_error(ctx) : "");
  return 1;
}

static double loss(const float *logits, int64_t V, int32_t target) {
  double top = logits[0], sum = 0;
  for (int64_t v = 1; v < V; v++) top = logits[v] > top ? logits[v] : top;
  for (int64_t v = 0; v < V; v++) sum += exp(logits[v] - top);
  return log(sum) + top - logits[target];
}

static int64_t best(const float *logits, int64_t V) {
  int64_t at = 0;
  for (int64_t v = 1; v < V; v++) at = logits[v] > logits[at] ? v : at;
  return at;
}

static char *read_text(const char *path, size_t *bytes) {
  FILE *f = fopen(path, "rb");
  if (!f) return NULL;
  const size_t room = (size_t)1 << 22;
  char *text = malloc(room);
  *bytes = text ? fread(text, 1, room, f) : 0;
  while (*bytes == room && (text[*bytes - 1] & 0x80)) --*bytes; /* not inside a character */
  fclose(f);
  return text;
}

enum { FORMATS = 4 };
static const wn_cache_format formats[FORMATS] = {WN_CACHE_FLOAT, WN_CACHE_HALF, WN_CACHE_Q8_0, WN_CACHE_Q4_0};

/* What one format gave. loss, apart: sums over a piece, of the loss and of its difference from that with floats. */
struct result {
  wn_session *session;
  float *logits;
  double loss, apart, difference, largest, sum[2], squares[2]; /* of pieces' means: of the loss, of the difference */
  int64_t equal;
};

static void add_token(struct result *r, const struct result *floats, int64_t V, int32_t target) {
  r->loss += loss(r->logits, V, target);
  r->apart += loss(r->logits, V, target) - loss(floats->logits, V, target);
  for (int64_t v = 0; v < V; v++) {
    const double d = fabs((double)floats->logits[v] - (double)r->logits[v]);
    r->difference += d / (double)V;
    r->largest = d > r->largest ? d : r->largest;
  }
  r->equal += best(floats->logits, V) == best(r->logits, V);
}

static void end_piece(struct result *r, int64_t positions) {
  const double means[2] = {r->loss / (double)positions, r->apart / (double)positions};
  for (int i = 0; i < 2; i++) r->sum[i] += means[i], r->squares[i] += means[i] * means[i];
  r->loss = r->apart = 0;
}

static void show(const struct result *r, wn_cache_format format, int64_t positions, int64_t pieces) {
  const double n = (double)pieces;
  double mean[2], error[2];
  for (int i = 0; i < 2; i++) {
    mean[i] = r->sum[i] / n;
    const double variance = pieces > 1 ? (r->squares[i] - n * mean[i] * mean[i]) / (n - 1) : 0;
    error[i] = sqrt(fmax(variance, 0) / n);
  }
  printf("{\"cache\": \"%s\", \"mean_difference\": %.6g, \"largest_difference\": %.6g, \"best_equal\": %.6f, "
         "\"loss\": %.6f, \"loss_error\": %.6f, \"perplexity\": %.6f, \"loss_apart\": %.6f, "
         "\"loss_apart_error\": %.6f, \"kv_bytes\": %zu}",
         wn_cache_format_name(format), r->difference / (double)positions, r->largest,
         (double)r->equal / (double)positions, mean[0], error[0], exp(mean[0]), mean[1], error[1],
         wn_session_kv_bytes(r->session));
}

int main(int argc, char **argv) {
  if (argc < 6 || argc > 7 || (argc == 7 && strcmp(argv[6], "float"))) {
    fprintf(stderr, "usage: bench_cache_format MODEL TEXT TOKENS PIECE THREADS [float]\n");
    return 2;
  }
  const int64_t tokens = atoll(argv[3]), piece = atoll(argv[4]);
  wn_context *ctx = NULL;
  wn_model *model = NULL;
  wn_tokenizer *tok = NULL;
  struct result results[FORMATS] = {{0}};
  int32_t *ids = NULL;
  size_t bytes = 0, count = 0;
  char *text = read_text(argv[2], &bytes);
  if (!text || tokens < 2 || piece < 2) return give_up(NULL, "the text, TOKENS or PIECE");
  if (wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = atoi(argv[5])}, &ctx) !=
      WN_OK)
    return give_up(ctx, "context");
  const wn_status loaded =
      argc == 7 ? wn_model_load(ctx, argv[1], WN_OPTIONS(wn_model_load_options, .as_float = true), &model)
                : wn_model_load(ctx, argv[1], NULL, &model);
  if (loaded != WN_OK || wn_tokenizer_load(ctx, argv[1], &tok) != WN_OK) return give_up(ctx, "model");
  if (wn_tokenizer_encode(ctx, tok, text, bytes, false, false, &ids, &count) != WN_OK) return give_up(ctx, "text");
  const int64_t V = wn_model_config_get(model)->vocab_size;
  const int64_t pieces = ((int64_t)count < tokens ? (int64_t)count : tokens) / piece;
  if (pieces < 1) return give_up(NULL, "the text is shorter than a piece");
  for (int f = 0; f < FORMATS; f++) {
    const wn_session_options options = {.size = sizeof options, .sequences = 1, .capacity = piece, .cache = formats[f]};
    if (wn_session_create(ctx, model, &options, &results[f].session) != WN_OK) return give_up(ctx, "session");
    if (!(results[f].logits = malloc((size_t)V * sizeof(float)))) return give_up(NULL, "memory");
  }
  for (int64_t i = 0; i < pieces * piece; i++) {
    for (int f = 0; f < FORMATS; f++) {
      struct result *r = &results[f];
      if (i % piece == 0) wn_session_reset(r->session);
      if (wn_session_feed(ctx, r->session, ids + i, 1, 0, r->logits) != WN_OK) return give_up(ctx, "token");
      if (i % piece < piece - 1) /* the last one has no target */
        add_token(r, results, V, ids[i + 1]);
      else
        end_piece(r, piece - 1);
    }
  }
  printf("{\"positions\": %lld, \"pieces\": %lld, \"caches\": [", (long long)(pieces * (piece - 1)), (long long)pieces);
  for (int f = 0; f < FORMATS; f++) {
    if (f) printf(", ");
    show(&results[f], formats[f], pieces * (piece - 1), pieces);
  }
  printf("]}\n");
  for (int f = 0; f < FORMATS; f++) free(results[f].logits), wn_session_destroy(results[f].session);
  free(text);
  wn_tokens_free(ids);
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
  return 0;
}
