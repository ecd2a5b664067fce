/* Finds where each token of a text begins and ends in it. Tokenizers change little but white space (SentencePiece drops
 * and adds it, templates trim it). So the decoded tokens and the text are compared with white space removed. Cost: one
 * decoding, and a search. */
#include <string.h>

#include "base/alloc.h"
#include "base/misuse.h"
#include "winnow/tokenizer.h"

static bool align_is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

/* A text without its white space: bytes [n], and the position of each in the text. */
struct align_bare {
  char *bytes;
  int64_t *at;
  size_t n;
};

static wn_status align_bare_create(wn_context *ctx, size_t room, struct align_bare *out) {
  void *memory;
  *out = (struct align_bare){0};
  WN_TRY(wn_alloc(ctx, "a text's places", (room + 1) * (sizeof *out->at + 1), &memory));
  out->at = memory;
  out->bytes = (char *)(out->at + room + 1);
  return WN_OK;
}

static void align_bare_add(struct align_bare *b, const char *text, size_t bytes, size_t from) {
  for (size_t i = 0; i < bytes; i++)
    if (!align_is_space(text[i])) b->bytes[b->n] = text[i], b->at[b->n++] = (int64_t)(from + i);
}

/* Decodes the tokens; before[i]: how many bytes, without white space, come before token i. */
static wn_status align_decode(wn_context *ctx, const wn_tokenizer *tok, const int32_t *ids, size_t count,
                              struct align_bare *out, int64_t *before) {
  wn_text_stream *stream;
  char *whole = NULL;
  size_t bytes = 0, from = 0;
  WN_TRY(wn_tokenizer_decode(ctx, tok, ids, count, &whole, &bytes));
  wn_text_free(whole);
  WN_TRY(wn_text_stream_create(ctx, tok, &stream));
  wn_status status = align_bare_create(ctx, bytes, out);
  for (size_t i = 0; i < count && status == WN_OK; i++) {
    const char *piece;
    size_t n;
    before[i] = (int64_t)out->n;
    status = wn_text_stream_push(ctx, stream, ids[i], &piece, &n);
    if (status != WN_OK) break;
    if (n > bytes - from) n = bytes - from; /* a stream may hand out bytes later than decoding at once */
    align_bare_add(out, piece, n, from);
    from += n;
  }
  before[count] = (int64_t)out->n;
  wn_text_stream_destroy(stream);
  return status;
}

/* The last occurrence of `part` in `in`; -1: none. The last, since in a chat the template's own text comes before the
 * message. */
static int64_t align_find(const struct align_bare *in, const struct align_bare *part) {
  for (size_t at = in->n + 1; at-- > 0;)
    if (part->n <= in->n - at && !memcmp(in->bytes + at, part->bytes, part->n)) return (int64_t)at;
  return -1;
}

wn_status wn_tokens_align(wn_context *ctx, const wn_tokenizer *tok, const int32_t *ids, size_t count, const char *text,
                          size_t bytes, int64_t *begin, int64_t *end) {
  WN_CHECK_CALL(WN_HANDLE(tok, TOKENIZER), WN_ARRAY(ids, count), WN_ARRAY(text, bytes), WN_ARRAY(begin, count),
                WN_ARRAY(end, count));
  struct align_bare all = {0}, part = {0};
  int64_t first = 0;
  int64_t *before;
  WN_TRY(WN_ALLOC(ctx, "places of tokens", count + 1, &before));
  wn_status status;
  WN_TRY_GOTO(align_decode(ctx, tok, ids, count, &all, before), done);
  WN_TRY_GOTO(align_bare_create(ctx, bytes, &part), done);
  align_bare_add(&part, text, bytes, 0);
  if (part.n > 0) first = align_find(&all, &part);
  if (first < 0)
    WN_TRY_GOTO(
        wn_fail(ctx, WN_ERR_UNSUPPORTED,
                "the tokens' text is not the text they were made of: the tokenizer changes more of it than white "
                "space, so that no place in it can be found"),
        done);
  const int64_t last = first + (int64_t)part.n;
  for (size_t i = 0; i < count; i++) {
    const int64_t from = before[i] > first ? before[i] : first, to = before[i + 1] < last ? before[i + 1] : last;
    begin[i] = end[i] = -1;
    if (from < to)
      begin[i] = part.at[from - first], end[i] = part.at[to - 1 - first] + 1;
    else if (before[i] == before[i + 1] && before[i] > first && before[i] < last) /* white space inside the text */
      begin[i] = end[i] = part.at[before[i] - 1 - first] + 1;
  }
  status = WN_OK;
done:
  wn_free(all.at);
  wn_free(part.at);
  wn_free(before);
  return status;
}
