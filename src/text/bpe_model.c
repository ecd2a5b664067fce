/* Builds a byte-pair model: tokens, merges, steps; and the published patterns that split texts into words. */
#include "text/bpe.h"

#include <stdio.h>
#include <string.h>
#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"

#define MAX_PROBES 4096

/* --- published patterns --- GPT-2: openai/gpt-2, encoder.py. cl100k (Llama 3, Qwen2 with single digits):
 * openai/tiktoken, tiktoken_ext. The others: the tokenizer.json of the named models. GGUF stores only a name, one of
 * llama.cpp's. */

const char wn_gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORDS_AND(digits)                                                                                              \
  CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| "                                                           \
               "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(after, digits)                                                                                           \
  "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" after "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" after "|" digits    \
  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct wn_published published[] = {
    {.names =
         "gpt-2|gpt2|phi-2|mpt|olmo|jais|trillion|granite-docling|jina-es|jina-de|jina-v2-es|jina-v2-de|roberta-bpe|"
         "gigachat|a.x-4.0|mellum|modern-bert",
     .patterns = {wn_gpt2_pattern}},
    {.names = "smollm|starcoder|refact|command-r|codeshell|exaone|minerva-7b", .patterns = {"\\p{N}", wn_gpt2_pattern}},
    {.names = "llama-bpe|llama3|llama-v3|falcon3|falcon-h1|pixtral|midm-2.0|lfm2",
     .patterns = {WORDS_AND("\\p{N}{1,3}")},
     .ignore_merges = true,
     .bos = true},
    {.names = "smaug-bpe|dbrx", .patterns = {WORDS_AND("\\p{N}{1,3}")}},
    {.names = "qwen2|deepseek-r1-qwen|megrez|kormo", .patterns = {WORDS_AND("\\p{N}")}, .nfc = true},
    {.names = "stablelm2|hunyuan", .patterns = {WORDS_AND("\\p{N}")}},
    {.names = "tekken", .patterns = {CASED("", "\\p{N}")}, .ignore_merges = true, .bos = true},
    {.names = "gpt-4o|llama4", .patterns = {CASED(CONTRACTIONS "?", "\\p{N}{1,3}")}},
    {.names = "falcon", .patterns = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", wn_gpt2_pattern, "[0-9][0-9][0-9]"}},
    {.names = "default", .patterns = {"[\\p{P}\\$\\+<=>\\^~\\|]+", wn_gpt2_pattern, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

const struct wn_published *wn_published_find(const char *name, size_t bytes) {
  for (size_t i = 0; i < sizeof published / sizeof *published; i++)
    for (const char *p = published[i].names; *p;) {
      const char *end = strchrnul(p, '|');
      if ((size_t)(end - p) == bytes && !memcmp(p, name, bytes)) return &published[i];
      p = *end ? end + 1 : end;
    }
  return NULL;
}

/* In each of these patterns a word of letters ends before a newline whatever follows, and nothing looks back. */
/* Is it a published pattern? Then a text may be cut before a newline that follows a letter. */
static bool published_has_pattern(const char *pattern) {
  for (size_t i = 0; i < sizeof published / sizeof *published; i++)
    for (int k = 0; k < 4 && published[i].patterns[k]; k++)
      if (!strcmp(published[i].patterns[k], pattern)) return true;
  return !strcmp(pattern, "\\p{N}{3}") || !strcmp(pattern, "\\p{N}{1,3}");
}

/* --- building --- */

wn_status wn_bpe_set_token(wn_context *ctx, const char *name, struct wn_bpe *bpe, int32_t id, const char *text,
                           size_t bytes, enum wn_token_kind kind) {
  char decoded[WN_TOKEN_MAX_BYTES];
  size_t n;
  struct wn_token *t = &bpe->vocab.tokens[id];
  bool mapped = bpe->byte_level && kind == WN_TOKEN_TEXT && bytes <= sizeof decoded &&
                wn_alphabet_decode(text, bytes, decoded, &n);
  WN_TRY(wn_vocab_set(ctx, name, &bpe->vocab, id, mapped ? decoded : text, mapped ? n : bytes, kind));
  t->mapped = mapped;
  t->model = kind == WN_TOKEN_TEXT && (mapped || !bpe->byte_level);
  return WN_OK;
}

wn_status wn_bpe_index(wn_context *ctx, const char *name, struct wn_bpe *bpe) {
  WN_TRY(wn_vocab_index(ctx, name, &bpe->vocab));
  for (int b = 0; b < 256; b++) {
    char text[8] = {(char)(unsigned char)b};
    size_t bytes = 1;
    if (!bpe->byte_level) {
      if (!bpe->byte_fallback && !bpe->bytes) break;
      bytes = (size_t)snprintf(text, sizeof text, "<0x%02X>", b);
    }
    bpe->byte_id[b] = wn_vocab_find(&bpe->vocab, text, bytes);
    if (!bpe->byte_level && bpe->byte_id[b] >= 0) bpe->vocab.tokens[bpe->byte_id[b]].kind = WN_TOKEN_BYTE;
  }
  return WN_OK;
}

wn_status wn_bpe_reserve_merges(wn_context *ctx, struct wn_bpe *bpe, uint64_t count) {
  if (count > WN_LIMIT_VOCABULARY)
    return wn_fail(ctx, WN_ERR_FORMAT, "%llu merges are too many", (unsigned long long)count);
  uint32_t room = 16;
  while (room < 2 * count) room *= 2;
  WN_TRY(WN_ALLOC(ctx, "tokenizer", room, &bpe->merges));
  bpe->merge_mask = room - 1;
  for (uint32_t i = 0; i < room; i++) bpe->merges[i].pair = UINT64_MAX;
  return WN_OK;
}

static int32_t find_part(const struct wn_bpe *bpe, const char *text, size_t bytes, char *scratch,
                         size_t *scratch_bytes) {
  if (bytes > WN_TOKEN_MAX_BYTES) return -1;
  if (!bpe->byte_level) {
    memcpy(scratch, text, bytes);
    *scratch_bytes = bytes;
  } else if (!wn_alphabet_decode(text, bytes, scratch, scratch_bytes)) {
    return -1;
  }
  return wn_vocab_find(&bpe->vocab, scratch, *scratch_bytes);
}

/* How many bytes of a token's text a message shows. */
static int shown(size_t bytes) {
  return bytes < 40 ? (int)bytes : 40;
}

wn_status wn_bpe_add_merge(wn_context *ctx, const char *name, struct wn_bpe *bpe, uint32_t rank, const char *left,
                           size_t left_bytes, const char *right, size_t right_bytes) {
  char text[2 * WN_TOKEN_MAX_BYTES];
  size_t n, m;
  int32_t a = find_part(bpe, left, left_bytes, text, &n);
  if (a < 0)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: merge %u joins \"%.*s\", which is not a token", name, rank,
                   shown(left_bytes), left);
  int32_t b = find_part(bpe, right, right_bytes, text + n, &m);
  if (b < 0)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: merge %u joins \"%.*s\", which is not a token", name, rank,
                   shown(right_bytes), right);
  int32_t whole = wn_vocab_find(&bpe->vocab, text, n + m);
  if (whole < 0)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: merge %u gives \"%.*s%.*s\", which is not a token", name, rank,
                   shown(left_bytes), left, shown(right_bytes), right);
  uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b, hash = pair * 0x9E3779B97F4A7C15u;
  uint32_t at = (uint32_t)(hash ^ hash >> 32) & bpe->merge_mask;
  for (int probes = 0; bpe->merges[at].pair != UINT64_MAX; at = (at + 1) & bpe->merge_mask, probes++) {
    if (bpe->merges[at].pair == pair) {
      if (bpe->last_merge) bpe->merges[at].rank = rank;
      return WN_OK;
    }
    if (probes > MAX_PROBES) return wn_fail(ctx, WN_ERR_FORMAT, "%s: the merges collide in their index", name);
  }
  bpe->merges[at] = (struct wn_merge){pair, rank, whole};
  bpe->merge_count++;
  return WN_OK;
}

wn_status wn_bpe_add_split(wn_context *ctx, const char *name, struct wn_bpe *bpe, const char *pattern, int behavior,
                           bool invert) {
  if (bpe->split_count == WN_BPE_STEPS)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: more than %d steps split the text", name, WN_BPE_STEPS);
  struct wn_split_step *step = &bpe->split[bpe->split_count];
  *step = (struct wn_split_step){.kind = WN_SPLIT_PATTERN, .invert = invert};
  switch (behavior) {
  case WN_SPLIT_REMOVED:
    step->behavior = WN_SPLIT_REMOVED;
    break;
  case WN_SPLIT_WITH_PREVIOUS:
    step->behavior = WN_SPLIT_WITH_PREVIOUS;
    break;
  case WN_SPLIT_WITH_NEXT:
    step->behavior = WN_SPLIT_WITH_NEXT;
    break;
  case WN_SPLIT_CONTIGUOUS:
    step->behavior = WN_SPLIT_CONTIGUOUS;
    break;
  default:
    step->behavior = WN_SPLIT_ISOLATED;
  }
  WN_TRY(wn_pattern_create(ctx, name, pattern, &step->pattern));
  bpe->split_count++;
  return WN_OK;
}

static bool can_cut(const struct wn_bpe *bpe) {
  if (!bpe->byte_level || bpe->split_count == 0) return false;
  bool words = false; /* some pattern ends words at newlines, and does not only split digits */
  for (int i = 0; i < bpe->split_count; i++) {
    const struct wn_split_step *step = &bpe->split[i];
    if (step->kind != WN_SPLIT_PATTERN || step->behavior != WN_SPLIT_ISOLATED ||
        !published_has_pattern(wn_pattern_text(step->pattern)))
      return false;
    words = words || strstr(wn_pattern_text(step->pattern), "\\s+(?!\\S)") != NULL;
  }
  if (!words) return false;
  for (int i = 0; i < bpe->normalize_count; i++)
    if (bpe->normalize[i].kind == WN_NORMALIZE_PREPEND || bpe->normalize[i].kind == WN_NORMALIZE_REPLACE) return false;
  for (int32_t id = 0; id < bpe->vocab.size; id++) {
    const struct wn_token *t = &bpe->vocab.tokens[id];
    if ((t->kind != WN_TOKEN_ADDED && t->kind != WN_TOKEN_SPECIAL) || t->bytes == 0) continue;
    const char *text = wn_vocab_text(&bpe->vocab, id);
    if (memchr(text, '\n', t->bytes) || t->rstrip) return false;
  }
  return true;
}

wn_status wn_bpe_finish(wn_context *ctx, const char *name, struct wn_bpe *bpe) {
  bool any = false;
  for (int32_t id = 0; id < bpe->vocab.size && !any; id++) any = bpe->vocab.tokens[id].model;
  if (!any) return wn_fail(ctx, WN_ERR_FORMAT, "%s: the vocabulary has no token that a text can become", name);
  WN_TRY(wn_finder_create(ctx, &bpe->vocab, false, NULL, NULL, &bpe->raw));
  WN_TRY(wn_finder_create(ctx, &bpe->vocab, true, wn_bpe_normalize, bpe, &bpe->normalized));
  bpe->cuttable = can_cut(bpe);
  return WN_OK;
}

size_t wn_bpe_token_text(const struct wn_bpe *bpe, int32_t id, char *out) {
  const struct wn_token *t = &bpe->vocab.tokens[id];
  const char *text = wn_vocab_text(&bpe->vocab, id);
  size_t n = 0;
  for (uint32_t i = 0; i < t->bytes; i++) {
    int32_t point = t->mapped ? wn_byte_alphabet((unsigned char)text[i]) : (unsigned char)text[i];
    if (t->mapped && point >= 0x80) {
      out[n++] = (char)(unsigned char)(0xC0 | point >> 6);
      out[n++] = (char)(unsigned char)(0x80 | (point & 0x3F));
    } else {
      out[n++] = (char)(unsigned char)point;
    }
  }
  out[n] = 0;
  return n;
}
