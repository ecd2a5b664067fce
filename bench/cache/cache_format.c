/* What a half-float cache costs in quality: two sessions of one model, one with each format, read the same text token
 * by token, in separate pieces. JSON on standard output.
 *
 *   bench_cache_format MODEL TEXT TOKENS PIECE THREADS [float]
 *
 * TEXT: a file, of which the first TOKENS tokens are read. float: weights as float32 (without 8-bit products, whose
 * rounding amplifies every small difference). Reports the mean and largest |difference| of the logits over all
 * positions, the share of positions with the same most likely token, the perplexity of each, and the bytes of a cache.
 */
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

int main(int argc, char **argv) {
  if (argc < 6 || argc > 7 || (argc == 7 && strcmp(argv[6], "float"))) {
    fprintf(stderr, "usage: bench_cache_format MODEL TEXT TOKENS PIECE THREADS [float]\n");
    return 2;
  }
  const int64_t tokens = atoll(argv[3]), piece = atoll(argv[4]);
  wn_context *ctx = NULL;
  wn_model *model = NULL;
  wn_tokenizer *tok = NULL;
  wn_session *session[2] = {NULL, NULL};
  int32_t *ids = NULL;
  size_t bytes = 0, count = 0;
  char *text = read_text(argv[2], &bytes);
  if (!text || tokens < 2 || piece < 2) return give_up(NULL, "the text, TOKENS or PIECE");
  if (wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = atoi(argv[5])}, &ctx) !=
      WN_OK)
    return give_up(ctx, "context");
  const wn_status loaded = argc == 7 ? wn_model_load_float(ctx, argv[1], &model) : wn_model_load(ctx, argv[1], &model);
  if (loaded != WN_OK || wn_tokenizer_load(ctx, argv[1], &tok) != WN_OK) return give_up(ctx, "model");
  if (wn_tokenizer_encode(ctx, tok, text, bytes, false, false, &ids, &count) != WN_OK) return give_up(ctx, "text");
  for (int f = 0; f < 2; f++) {
    const wn_session_options options = {
        .size = sizeof options, .sequences = 1, .capacity = piece, .cache = f ? WN_CACHE_HALF : WN_CACHE_FLOAT};
    if (wn_session_create_with(ctx, model, &options, &session[f]) != WN_OK) return give_up(ctx, "session");
  }
  const int64_t V = wn_model_config_get(model)->vocab_size, n = (int64_t)count < tokens ? (int64_t)count : tokens;
  float *logits[2] = {malloc((size_t)V * sizeof(float)), malloc((size_t)V * sizeof(float))};
  if (!logits[0] || !logits[1]) return give_up(NULL, "memory");
  double nll[2] = {0, 0}, difference = 0, largest = 0;
  int64_t equal = 0, counted = 0;
  for (int64_t i = 0; i + 1 < n; i++) {
    for (int f = 0; f < 2; f++) {
      if (i % piece == 0) wn_session_reset(session[f]);
      if (wn_session_feed(ctx, session[f], ids + i, 1, 0, logits[f]) != WN_OK) return give_up(ctx, "token");
    }
    if (i % piece == piece - 1) continue; /* the next token starts a piece */
    for (int f = 0; f < 2; f++) nll[f] += loss(logits[f], V, ids[i + 1]);
    for (int64_t v = 0; v < V; v++) {
      const double d = fabs((double)logits[0][v] - (double)logits[1][v]);
      difference += d / (double)V;
      largest = d > largest ? d : largest;
    }
    equal += best(logits[0], V) == best(logits[1], V);
    counted++;
  }
  printf("{\"positions\": %lld, \"mean_difference\": %.6g, \"largest_difference\": %.6g, \"best_equal\": %.6f, "
         "\"perplexity_float\": %.6f, \"perplexity_half\": %.6f, \"kv_bytes_float\": %zu, \"kv_bytes_half\": %zu}\n",
         (long long)counted, difference / (double)counted, largest, (double)equal / (double)counted,
         exp(nll[0] / (double)counted), exp(nll[1] / (double)counted), wn_session_kv_bytes(session[0]),
         wn_session_kv_bytes(session[1]));
  free(logits[0]), free(logits[1]), free(text);
  wn_tokens_free(ids);
  for (int f = 0; f < 2; f++) wn_session_destroy(session[f]);
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
  return 0;
}
