/* Trains SentencePiece tokenizers. The texts are mapped and passed on line by line; a line is a sentence. With
 * max_sentences, exactly that many lines are drawn without replacement in one pass (Knuth, The Art of Computer
 * Programming, volume 2, 3.4.2, algorithm S). The random numbers depend on the line's index: the same lines every
 * time. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/misuse.h"
#include "base/options.h"
#include "base/rng.h"
#include "text/spm.h"
#include "text/utf8.h"
#include "winnow/tokenizer.h"

#include <stdio.h>
#include <string.h>

#define LINE_BYTES ((size_t)16 << 10) /* longer lines are cut: training needs words, not sentences */

struct lines {
  wn_context *ctx;
  const struct wn_map *maps;
  int count, file;
  size_t at;                             /* position in the current file */
  uint64_t index, total, chosen, wanted; /* lines read, all lines; lines drawn, lines to draw (0: all) */
};

/* The next non-empty line. */
static bool next_line(struct lines *l, const char **text, size_t *bytes) {
  while (l->file < l->count) {
    const struct wn_map *map = &l->maps[l->file];
    if (l->at >= map->bytes) {
      l->file++;
      l->at = 0;
      continue;
    }
    const char *start = (const char *)map->data + l->at;
    size_t left = map->bytes - l->at, n;
    const char *newline = memchr(start, '\n', left < LINE_BYTES ? left : LINE_BYTES);
    if (newline) {
      n = (size_t)(newline - start);
      l->at += n + 1;
    } else if (left <= LINE_BYTES) {
      n = left;
      l->at += n;
    } else { /* cut at a space, else between characters */
      const char *space = memrchr(start, ' ', LINE_BYTES);
      n = space && space > start ? (size_t)(space - start) : LINE_BYTES;
      while (n > 1 && ((unsigned char)start[n] & 0xC0) == 0x80) n--;
      l->at += n;
    }
    if (n > 0 && start[n - 1] == '\r') n--;
    if (n == 0 || memchr(start, 0, n)) continue; /* SentencePiece cannot train on NULs */
    *text = start;
    *bytes = n;
    return true;
  }
  return false;
}

/* SentencePiece calls it again after the end. */
static bool next_sentence(void *user, const char **text, size_t *bytes) {
  struct lines *l = user;
  while (next_line(l, text, bytes)) {
    uint64_t i = l->index++;
    if (l->wanted == 0) return !wn_context_cancelled(l->ctx);
    if (l->chosen == l->wanted) return false;
    if (wn_random_below(0, WN_STREAM_SPLIT, 1, i, l->total - i) >= l->wanted - l->chosen) continue;
    l->chosen++;
    return !wn_context_cancelled(l->ctx);
  }
  return false;
}

void wn_tokenizer_train_options_init(wn_tokenizer_train_options *options, size_t size) {
  WN_CHECK_OR(, WN_POINTER(options));
  const wn_tokenizer_train_options defaults = {.vocab_size = 8000, .kind = "unigram", .byte_fallback = true};
  wn_options_default(&defaults, sizeof defaults, options, size);
}

static wn_status tokenizer_train_check_options(wn_context *ctx, const wn_tokenizer_train_options *o) {
  if (o->input_count < 1) return wn_fail(ctx, WN_ERR_ARGUMENT, "a tokenizer is trained on at least one text");
  if (!o->output || !*o->output) return wn_fail(ctx, WN_ERR_ARGUMENT, "the tokenizer's file has no name");
  if (o->kind && strcmp(o->kind, "unigram") && strcmp(o->kind, "bpe"))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "tokenizer kind \"%s\" is not one of unigram, bpe", o->kind);
  if (o->vocab_size < 8 || o->vocab_size > 1 << 20)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "a vocabulary of %d is out of range 8..%d", o->vocab_size, 1 << 20);
  if (!(o->coverage == 0 || (o->coverage >= 0.98 && o->coverage <= 1))) /* the range that SentencePiece allows */
    return wn_fail(ctx, WN_ERR_ARGUMENT, "a character coverage of %g is out of range 0.98..1", o->coverage);
  if (o->max_sentences < 0 || o->threads < 0 || o->threads > 1024)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s is out of range", o->threads ? "the number of threads" : "max_sentences");
  return WN_OK;
}

/* Translates SentencePiece's errors that name its own options: "... 270 vs 288" (the vocabulary asked for, and the
 * tokens that every vocabulary needs) and "... (60000). Please set it to a value <= 283". */
static wn_status tokenizer_train_failed(wn_context *ctx, const wn_tokenizer_train_options *o, const char *text) {
  char what[sizeof((struct wn_spm_error *)0)->text];
  int asked, bound;
  if (sscanf(text, "Vocabulary size is smaller than required_chars. %d vs %d", &asked, &bound) == 2)
    snprintf(what, sizeof what,
             "the text's characters%s and special tokens are %d: ask for a larger vocabulary or a smaller coverage",
             o->byte_fallback ? ", all bytes" : "", bound);
  else if (sscanf(text, "Vocabulary size too high (%d). Please set it to a value <= %d", &asked, &bound) == 2)
    snprintf(what, sizeof what, "the text gives a vocabulary of at most %d", bound);
  else
    snprintf(what, sizeof what, "%s", text);
  return wn_fail(ctx, WN_ERR_CONFIG, "training %s of %d tokens on %s%s: %s", o->output, o->vocab_size, o->inputs[0],
                 o->input_count > 1 ? " and others" : "", what);
}

wn_status wn_tokenizer_train(wn_context *ctx, const wn_tokenizer_train_options *options) {
  WN_CHECK_ARGUMENTS(ctx, WN_HANDLE(ctx, CONTEXT));
  wn_tokenizer_train_options own, *o = &own;
  WN_TRY(WN_OPTIONS_READ(ctx, wn_tokenizer_train_options, options, &own));
  WN_TRY(tokenizer_train_check_options(ctx, o));
  WN_TRY(wn_alloc_reserve(ctx));
  struct wn_map *maps;
  WN_TRY(WN_ALLOC(ctx, "tokenizer training", o->input_count, &maps));
  wn_status status = WN_OK;
  char *model = NULL;
  size_t total = 0, bytes = 0, bad;
  for (int i = 0; i < o->input_count && status == WN_OK; i++) {
    status = wn_map_open(ctx, o->inputs[i], &maps[i]);
    if (status != WN_OK) break;
    const char *text = (const char *)maps[i].data;
    total += maps[i].bytes;
    if (maps[i].bytes == 0)
      status = wn_fail(ctx, WN_ERR_FORMAT, "%s: the file is empty", o->inputs[i]);
    else if (!wn_utf8_check(text, maps[i].bytes, &bad))
      status = wn_fail(ctx, WN_ERR_FORMAT, "%s: not UTF-8 at byte %zu (0x%02x)", o->inputs[i], bad,
                       (unsigned char)text[bad]);
  }
  struct lines lines = {.ctx = ctx, .maps = maps, .count = o->input_count};
  const char *text;
  size_t n;
  if (status == WN_OK) {
    while (next_line(&lines, &text, &n)) lines.total++;
    lines.file = 0;
    lines.at = 0;
    if (o->max_sentences > 0 && (uint64_t)o->max_sentences < lines.total) lines.wanted = (uint64_t)o->max_sentences;
    if (lines.total == 0) status = wn_fail(ctx, WN_ERR_FORMAT, "%s: no line with text in it", o->inputs[0]);
  }
  if (status == WN_OK) {
    struct wn_spm_training training = {.kind = o->kind ? o->kind : "unigram",
                                       .vocab_size = o->vocab_size,
                                       .threads = o->threads ? o->threads : wn_context_threads(ctx),
                                       .coverage = o->coverage > 0 ? o->coverage : 0.9995,
                                       .byte_fallback = o->byte_fallback,
                                       .large = total > (size_t)1 << 30 && !lines.wanted,
                                       .next = next_sentence,
                                       .user = &lines};
    struct wn_spm_error error;
    bool trained = wn_spm_train(&training, &model, &bytes, &error);
    if (wn_context_cancelled(ctx))
      status = wn_fail(ctx, WN_ERR_CANCELLED, "%s: cancelled", o->output);
    else if (!trained)
      status = tokenizer_train_failed(ctx, o, error.text);
    else
      status = wn_file_write(ctx, o->output, model, bytes);
  }
  wn_spm_text_free(model);
  for (int i = 0; i < o->input_count; i++) wn_map_close(&maps[i]);
  wn_free(maps);
  return status;
}
