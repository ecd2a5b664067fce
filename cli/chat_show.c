/* What is kept of a conversation: counts, and its text with dropped tokens struck through. A token is dropped when no
 * layer holds its key and value any more; while some layers do, later tokens can still attend to it there. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "chat.h"

/* layers [the session's position], free()d by the caller: how many layers hold each token, or with `all` how many
 * key-value heads of all layers. *mean: tokens that a layer holds on average. */
static int show_layers(const struct chat *c, bool all, int32_t **layers, double *mean) {
  const size_t seen = (size_t)wn_session_position(c->session);
  const int64_t L = wn_model_config_get(c->in.model)->layers;
  int32_t *heads = calloc(seen + 1, sizeof *heads);
  int64_t sum = 0;
  wn_status status = WN_OK;
  *layers = calloc(seen + 1, sizeof **layers);
  int code = heads && *layers ? 0 : cli_error("out of memory");
  for (int64_t l = 0; !code && l < L && status == WN_OK; l++) {
    status = wn_session_held(c->ctx, c->session, 0, l, heads);
    for (size_t i = 0; status == WN_OK && i < seen; i++)
      (*layers)[i] += all ? heads[i] : heads[i] > 0, sum += heads[i] > 0;
  }
  if (!code && status != WN_OK) code = cli_fail(c->ctx, status);
  *mean = (double)sum / (double)L;
  free(heads);
  if (code) free(*layers), *layers = NULL;
  return code;
}

int chat_count_kept(const struct chat *c, struct chat_kept *out) {
  const size_t seen = (size_t)wn_session_position(c->session);
  int32_t *layers;
  *out = (struct chat_kept){.tokens = (int64_t)c->ids.count, .kept = (int64_t)(c->ids.count - seen)};
  if (show_layers(c, false, &layers, &out->mean)) return 1;
  for (size_t i = 0; i < seen; i++) out->kept += layers[i] > 0;
  for (size_t i = 0; i < c->first; i++) out->tokens += (int64_t)(c->turns[i].prompt.count + c->turns[i].answer.count);
  free(layers);
  return 0;
}

/* --- turn by turn --- */

json_t *chat_turns_json(const struct chat *c) {
  const size_t seen = (size_t)wn_session_position(c->session);
  const wn_model_config *config = wn_model_config_get(c->in.model);
  json_t *list = json_array();
  int32_t *heads;
  double mean;
  size_t at = 0;
  if (show_layers(c, true, &heads, &mean)) {
    json_decref(list);
    return NULL;
  }
  for (size_t i = 0; i < c->turn_count; i++) {
    const struct chat_turn *t = &c->turns[i];
    const size_t n = t->prompt.count + t->answer.count;
    double kept = 0;
    for (size_t j = 0; i >= c->first && j < n; j++)
      kept +=
          at + j < seen ? (double)heads[at + j] / (double)(config->layers * config->kv_heads) : 1; /* not read yet */
    if (i >= c->first) at += n;
    json_array_append_new(list, json_pack("{s:I, s:f, s:b}", "tokens", (json_int_t)n, "kept", round(kept * 100) / 100,
                                          "pinned", t->pinned));
  }
  free(heads);
  return list;
}

int chat_print_turns(const struct chat *c) {
  json_t *list = chat_turns_json(c), *one;
  size_t i;
  if (!list) return 1;
  json_array_foreach(list, i, one) {
    const char *message = c->turns[i].message;
    const double kept = json_number_value(json_object_get(one, "kept"));
    const int64_t tokens = json_integer_value(json_object_get(one, "tokens"));
    fprintf(stderr, "%4zu  %5.0f of %5" PRId64 " tokens kept%s  %.*s\n", i + 1, kept, tokens,
            c->turns[i].pinned ? ", pinned" : "", (int)(strcspn(message, "\n") < 48 ? strcspn(message, "\n") : 48),
            message);
  }
  json_decref(list);
  return 0;
}

/* --- the conversation token by token --- */

enum { NOT_READ = -1 };
typedef int (*show_token)(void *user, const char *text, size_t bytes, int32_t layers);

/* Shows the tokens of `ids`; layers [seen] says how many layers hold each of the first `seen`. */
static int show_tokens(const struct chat *c, const struct cli_ids *ids, const int32_t *layers, size_t seen,
                       show_token show, void *user) {
  wn_text_stream *stream = NULL;
  wn_status status = wn_text_stream_create(c->ctx, c->in.tok, &stream);
  int code = 0;
  for (size_t i = 0; status == WN_OK && !code && i < ids->count; i++) {
    const char *text;
    size_t bytes;
    status = wn_text_stream_push(c->ctx, stream, ids->data[i], &text, &bytes);
    if (status != WN_OK) break;
    if (bytes == 0 && wn_tokenizer_is_control(c->in.tok, ids->data[i]))
      text = wn_tokenizer_token_name(c->in.tok, ids->data[i], &bytes);
    code = show(user, text ? text : "", text ? bytes : 0, i >= seen ? NOT_READ : layers ? layers[i] : 0);
  }
  wn_text_stream_destroy(stream);
  return status == WN_OK ? code : cli_fail(c->ctx, status);
}

/* Shows the whole conversation: forgotten turns, which no layer holds, then what the session has. */
static int show_conversation(const struct chat *c, show_token show, void *user) {
  int32_t *layers;
  double mean;
  int code = show_layers(c, false, &layers, &mean);
  for (size_t i = 0; !code && i < c->first; i++) {
    const struct chat_turn *t = &c->turns[i];
    code = show_tokens(c, &t->prompt, NULL, t->prompt.count, show, user);
    if (!code) code = show_tokens(c, &t->answer, NULL, t->answer.count, show, user);
  }
  if (!code) code = show_tokens(c, &c->ids, layers, (size_t)wn_session_position(c->session), show, user);
  free(layers);
  return code;
}

/* --- on a terminal, or as a text --- */

bool chat_put_safely(const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    const unsigned char byte = (unsigned char)text[i], next = i + 1 < bytes ? (unsigned char)text[i + 1] : 0;
    const bool c1 = byte == 0xc2 && next >= 0x80 && next < 0xa0;
    const bool plain = !c1 && (byte >= ' ' ? byte != 0x7f : byte == '\n' || byte == '\t');
    if (putchar(plain ? byte : '?') == EOF) return false;
    i += c1;
  }
  return true;
}

struct printing {
  bool terminal, struck;
};

static void print_strike(struct printing *p, bool struck) {
  if (p->struck == struck) return;
  fputs(p->terminal ? (struck ? "\033[9;2m" : "\033[0m") : "~~", stdout);
  p->struck = struck;
}

static int print_token(void *user, const char *text, size_t bytes, int32_t layers) {
  struct printing *p = user;
  for (size_t i = 0, n; i < bytes; i += n) {
    const char *end = memchr(text + i, '\n', bytes - i);
    n = end == text + i ? 1 : end ? (size_t)(end - text) - i : bytes - i;
    print_strike(p, layers == 0 && end != text + i); /* marks do not extend over line ends */
    if (p->terminal)
      chat_put_safely(text + i, n);
    else
      fwrite(text + i, 1, n, stdout);
  }
  return 0;
}

int chat_print_context(const struct chat *c) {
  struct printing p = {.terminal = isatty(STDOUT_FILENO)};
  const int code = show_conversation(c, print_token, &p);
  print_strike(&p, false);
  putchar('\n');
  fflush(stdout);
  return code;
}

static int json_token(void *user, const char *text, size_t bytes, int32_t layers) {
  json_t *string = json_stringn(text, bytes), *held = layers == NOT_READ ? json_null() : json_integer(layers);
  json_t *token = json_pack("{s:o, s:o}", "text", string ? string : json_null(), "layers", held);
  return json_array_append_new(user, token) ? cli_error("out of memory") : 0;
}

json_t *chat_context_json(const struct chat *c) {
  json_t *list = json_array();
  if (list && !show_conversation(c, json_token, list)) return list;
  json_decref(list);
  return NULL;
}
