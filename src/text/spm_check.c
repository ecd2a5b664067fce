/* Validates SentencePiece model files: the protobuf (sentencepiece_model.proto) with a small reader, and the
 * normaliser's double array (the layout of Yata's Darts-clone) with a depth-first walk. Cost: O(file) for the protobuf,
 * 256 probes per node of the double array. */
#include "text/spm_check.h"

#include <math.h>
#include <string.h>
#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "text/spm_wire.h"
#include "text/utf8.h"

#define MAX_PIECE_BYTES 4096
#define MAX_RULE_BYTES 1024 /* longest replacement of a normalisation rule */

/* Checks one vocabulary entry. */
static wn_status check_piece(wn_context *ctx, const char *name, int32_t id, const struct wn_wire_field *message,
                             struct wn_spm_info *info, enum wn_spm_piece_type *type) {
  struct wn_wire r = wn_wire_in(message);
  struct wn_wire_field f;
  *type = WN_PIECE_NORMAL;
  const uint8_t *text = NULL;
  size_t bytes = 0;
  while (r.p < r.end) {
    if (!wn_wire_next(&r, &f)) return wn_fail(ctx, WN_ERR_FORMAT, "%s: piece %d is malformed", name, id);
    if (f.number == 1 && f.wire == 2) {
      text = f.data, bytes = f.bytes;
    } else if (f.number == 2 && f.wire == 5) {
      uint32_t bits = (uint32_t)f.value;
      float score;
      memcpy(&score, &bits, sizeof score);
      if (!isfinite(score)) return wn_fail(ctx, WN_ERR_FORMAT, "%s: the score of piece %d is not finite", name, id);
    } else if (f.number == 3 && f.wire == 0) {
      if (f.value < WN_PIECE_NORMAL || f.value > WN_PIECE_BYTE)
        return wn_fail(ctx, WN_ERR_FORMAT, "%s: piece %d has the unknown type %llu", name, id,
                       (unsigned long long)f.value);
      *type = (enum wn_spm_piece_type)f.value;
    } else if (f.number <= 3) {
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: piece %d has a field of the wrong type", name, id);
    }
  }
  size_t bad;
  if (bytes == 0 || bytes > MAX_PIECE_BYTES)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: piece %d is %zu bytes long, expected 1 to %d", name, id, bytes,
                   MAX_PIECE_BYTES);
  if (memchr(text, 0, bytes) || !wn_utf8_check((const char *)text, bytes, &bad))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: piece %d is not UTF-8 text", name, id);
  if (bytes > 1 && memchr(text, '\n', bytes)) info->newline_inside = true;
  return WN_OK;
}

static wn_status check_trainer(wn_context *ctx, const char *name, const struct wn_wire_field *message,
                               struct wn_spm_info *info) {
  struct wn_wire r = wn_wire_in(message);
  struct wn_wire_field f;
  while (r.p < r.end) {
    if (!wn_wire_next(&r, &f)) return wn_fail(ctx, WN_ERR_FORMAT, "%s: the trainer specification is malformed", name);
    size_t bad;
    if (f.number == 3 && (f.wire != 0 || f.value < 1 || f.value > 4))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: unknown model type %llu", name, (unsigned long long)f.value);
    if (f.number == 3) info->unigram = f.value == 1, info->bpe = f.value == 2, info->words = f.value == 3;
    if (f.number == 35) info->byte_fallback = f.wire == 0 && f.value != 0;
    if (f.number == 24) {
      if (f.wire != 0) return wn_fail(ctx, WN_ERR_FORMAT, "%s: treat_whitespace_as_suffix is not a bool", name);
      if (f.value)
        return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                       "%s: the model marks spaces at the ends of words "
                       "(treat_whitespace_as_suffix), which cannot be streamed",
                       name);
    }
    if (f.number == 44) {
      if (f.wire != 2 || f.bytes >= sizeof info->unk_surface || (f.bytes && memchr(f.data, 0, f.bytes)) ||
          !wn_utf8_check((const char *)f.data, f.bytes, &bad))
        return wn_fail(ctx, WN_ERR_FORMAT, "%s: unk_surface is not UTF-8 text of less than %zu bytes", name,
                       sizeof info->unk_surface);
      if (f.bytes) memcpy(info->unk_surface, f.data, f.bytes);
      info->unk_surface[f.bytes] = 0;
    }
  }
  return WN_OK;
}

static wn_status check_replacement(wn_context *ctx, const char *name, const struct wn_spm_trie *t, uint32_t value) {
  size_t bad;
  const uint8_t *end = value < t->text_bytes ? memchr(t->text + value, 0, t->text_bytes - value) : NULL;
  if (!end)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: a normalisation rule points outside its table (offset %u of %zu)", name,
                   value, t->text_bytes);
  size_t length = (size_t)(end - (t->text + value));
  if (length > MAX_RULE_BYTES || !wn_utf8_check((const char *)t->text + value, length, &bad))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: a normalisation rule's replacement is not UTF-8 text of at most %d bytes",
                   name, MAX_RULE_BYTES);
  return WN_OK;
}

static wn_status walk_trie(wn_context *ctx, const char *name, const struct wn_spm_trie *t, struct wn_spm_info *info) {
  enum { UNSEEN, OPEN, DONE };
  struct frame {
    uint32_t node;
    uint16_t next; /* the next label to try */
  } *stack = NULL;
  uint8_t *state = NULL; /* [count] */
  size_t depth = 0;
  wn_status status = WN_OK;
  if (t->count > UINT32_MAX) return wn_fail(ctx, WN_ERR_FORMAT, "%s: the normalisation table is too large", name);
  WN_TRY_GOTO(WN_ALLOC(ctx, "tokenizer check", t->count, &state), out);
  WN_TRY_GOTO(WN_ALLOC(ctx, "tokenizer check", t->count, &stack), out);
  stack[depth++] = (struct frame){0, 0};
  state[0] = OPEN;
  while (depth > 0) {
    struct frame *top = &stack[depth - 1];
    size_t block = wn_spm_trie_block(t, top->node);
    if (top->next == 0) {
      if ((block | 255) >= t->count) {
        status = wn_fail(ctx, WN_ERR_FORMAT, "%s: the normalisation table points outside itself (unit %zu of %zu)",
                         name, block | 255, t->count);
        goto out;
      }
      if (wn_spm_trie_unit(t, top->node) & 0x100)
        WN_TRY_GOTO(check_replacement(ctx, name, t, wn_spm_trie_unit(t, block) & 0x7FFFFFFF), out);
    }
    if (top->next == 256) {
      state[top->node] = DONE;
      depth--;
      continue;
    }
    uint32_t label = top->next++;
    size_t child = block ^ label;
    if ((wn_spm_trie_unit(t, child) & 0x800000FF) != label) continue;
    if (label == '\n') info->newline_inside = true;
    if (state[child] == OPEN) {
      status = wn_fail(ctx, WN_ERR_FORMAT, "%s: the normalisation table has a cycle", name);
      goto out;
    }
    if (state[child] == DONE) continue; /* a shared suffix */
    state[child] = OPEN;
    stack[depth++] = (struct frame){(uint32_t)child, 0};
  }
out:
  wn_free(stack);
  wn_free(state);
  return status;
}

static wn_status check_charsmap(wn_context *ctx, const char *name, const uint8_t *data, size_t bytes,
                                struct wn_spm_info *info) {
  if (bytes == 0) return WN_OK;
  struct wn_wire r = {data, data + bytes};
  uint64_t trie_bytes;
  if (!wn_wire_fixed(&r, 4, &trie_bytes) || trie_bytes > (uint64_t)(r.end - r.p) || trie_bytes % 4)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: the normalisation table's size does not fit its %zu bytes", name, bytes);
  struct wn_spm_trie t = {.units = r.p,
                          .count = (size_t)trie_bytes / 4,
                          .text = r.p + trie_bytes,
                          .text_bytes = bytes - 4 - (size_t)trie_bytes};
  if (t.count == 0) return wn_fail(ctx, WN_ERR_FORMAT, "%s: the normalisation table is empty", name);
  return walk_trie(ctx, name, &t, info);
}

static wn_status check_normalizer(wn_context *ctx, const char *name, const struct wn_wire_field *message,
                                  bool denormalizer, struct wn_spm_info *info) {
  struct wn_wire r = wn_wire_in(message);
  struct wn_wire_field f, charsmap = {0};
  while (r.p < r.end) {
    if (!wn_wire_next(&r, &f)) return wn_fail(ctx, WN_ERR_FORMAT, "%s: the normaliser is malformed", name);
    if (f.number == WN_SPM_FIELD && f.wire == 0)
      info->foreign =
          (struct wn_spm_foreign){f.value & 1, (uint8_t)((f.value >> 1 & 3) % 3), (uint8_t)((f.value >> 3 & 3) % 3)};
    if (f.number < 1 || f.number > 5) continue;
    if (f.wire != (f.number <= 2 ? 2 : 0))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: a field of the normaliser has the wrong type", name);
    if (f.number == 2) charsmap = f;
    if (denormalizer) continue;
    if (f.number == 3) info->add_dummy_prefix = f.value != 0;
    if (f.number == 4) info->remove_extra_whitespaces = f.value != 0;
    if (f.number == 5) info->escape_whitespaces = f.value != 0;
  }
  if (denormalizer && charsmap.bytes)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                   "%s: the model rewrites text after decoding (a denormaliser), which "
                   "cannot be streamed",
                   name);
  if (charsmap.bytes) info->charsmap = true;
  return check_charsmap(ctx, name, charsmap.data, charsmap.bytes, info);
}

wn_status wn_spm_check(wn_context *ctx, const char *name, const void *data, size_t bytes, struct wn_spm_info *info) {
  struct wn_wire r = {data, (const uint8_t *)data + bytes};
  struct wn_wire_field f;
  int seen[6] = {0};
  *info = (struct wn_spm_info){.unigram = true,
                               .add_dummy_prefix = true,
                               .remove_extra_whitespaces = true,
                               .escape_whitespaces = true,
                               .unk_surface = " \xE2\x81\x87 "};
  if (bytes == 0) return wn_fail(ctx, WN_ERR_FORMAT, "%s: the file is empty", name);
  while (r.p < r.end) {
    size_t at = (size_t)(r.p - (const uint8_t *)data);
    enum wn_spm_piece_type type;
    if (!wn_wire_next(&r, &f))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: not a SentencePiece model, or truncated (byte %zu of %zu)", name, at,
                     bytes);
    if (f.number < 1 || f.number > 5) continue;
    if (f.wire != 2 || (f.number != 1 && seen[f.number]++))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: not a SentencePiece model (field %u at byte %zu)", name, f.number, at);
    switch (f.number) {
    case 1:
      if (info->pieces == WN_LIMIT_VOCABULARY)
        return wn_fail(ctx, WN_ERR_FORMAT, "%s: more than %d pieces", name, WN_LIMIT_VOCABULARY);
      WN_TRY(check_piece(ctx, name, info->pieces, &f, info, &type));
      info->pieces++;
      if (type != WN_PIECE_USER_DEFINED) break;
      if (info->user_defined_count < WN_SPM_USER_DEFINED)
        info->user_defined[info->user_defined_count] = info->pieces - 1;
      info->user_defined_count++;
      break;
    case 2:
      WN_TRY(check_trainer(ctx, name, &f, info));
      break;
    case 3:
    case 5:
      WN_TRY(check_normalizer(ctx, name, &f, f.number == 5, info));
      break;
    default: /* self-test samples */
      break;
    }
  }
  return info->pieces ? WN_OK : wn_fail(ctx, WN_ERR_FORMAT, "%s: not a SentencePiece model: no pieces", name);
}
