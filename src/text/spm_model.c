/* Reads the pieces of a SentencePiece model: one pass over the file to count them, one to take them. A hash table finds
 * duplicates. Cost: O(file). */
#include "text/spm_inside.h"

#include <string.h>
#include "base/alloc.h"
#include "base/error.h"

static uint64_t spm_hash(const char *text, size_t bytes) {
  uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
  for (size_t i = 0; i < bytes; i++) h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
  return h ^ h >> 29;
}

/* The slot of a text, or the free slot where it would go. */
static uint32_t spm_slot(const struct wn_spm *spm, const char *text, size_t bytes) {
  uint32_t at = (uint32_t)spm_hash(text, bytes) & spm->mask;
  for (; spm->slots[at] >= 0; at = (at + 1) & spm->mask) {
    const struct wn_spm_piece *p = &spm->pieces[spm->slots[at]];
    if (p->bytes == bytes && !memcmp(spm->texts + p->at, text, bytes)) break;
  }
  return at;
}

static int32_t spm_find(const struct wn_spm *spm, const char *text, size_t bytes) {
  return spm->slots[spm_slot(spm, text, bytes)];
}

/* The names of the special pieces, from the trainer's specification. */
struct special {
  struct wn_wire_field bos, eos, unknown;
};

static struct special spm_special(const struct wn_wire_field *message) {
  struct special s = {.bos = {.data = (const uint8_t *)"<s>", .bytes = 3},
                      .eos = {.data = (const uint8_t *)"</s>", .bytes = 4},
                      .unknown = {.data = (const uint8_t *)"<unk>", .bytes = 5}};
  struct wn_wire r = wn_wire_in(message);
  struct wn_wire_field f;
  while (r.p < r.end && wn_wire_next(&r, &f)) {
    if (f.wire != 2) continue;
    if (f.number == 45) s.unknown = f;
    if (f.number == 46) s.bos = f;
    if (f.number == 47) s.eos = f;
  }
  return s;
}

static void spm_rules(struct wn_spm *spm, const struct wn_wire_field *message) {
  struct wn_wire r = wn_wire_in(message);
  struct wn_wire_field f, charsmap = {0};
  uint64_t units;
  while (r.p < r.end && wn_wire_next(&r, &f))
    if (f.number == 2) charsmap = f;
  struct wn_wire table = wn_wire_in(&charsmap);
  if (charsmap.bytes == 0 || !wn_wire_fixed(&table, 4, &units)) return;
  spm->rules = (struct wn_spm_trie){.units = table.p,
                                    .count = (size_t)units / 4,
                                    .text = table.p + units,
                                    .text_bytes = charsmap.bytes - 4 - (size_t)units};
}

static void spm_take(struct wn_spm *spm, int32_t id, const struct wn_wire_field *message, size_t *used) {
  struct wn_wire r = wn_wire_in(message);
  struct wn_wire_field f, text = {0};
  struct wn_spm_piece *p = &spm->pieces[id];
  *p = (struct wn_spm_piece){.at = *used, .type = WN_PIECE_NORMAL};
  while (r.p < r.end && wn_wire_next(&r, &f)) {
    const uint32_t bits = (uint32_t)f.value;
    if (f.number == 1) text = f;
    if (f.number == 2) memcpy(&p->score, &bits, sizeof bits);
    if (f.number == 3) p->type = (uint8_t)f.value;
  }
  p->bytes = (uint16_t)text.bytes;
  memcpy(spm->texts + *used, text.data, text.bytes);
  *used += text.bytes;
  spm->texts[(*used)++] = 0;
}

static wn_status spm_pieces(wn_context *ctx, const char *name, const void *model, size_t bytes, struct wn_spm *spm) {
  struct wn_wire r = {model, (const uint8_t *)model + bytes};
  struct wn_wire_field f, trainer = {0};
  size_t used = 0;
  int32_t id = 0, unknowns = 0, in_bytes = 0;
  while (r.p < r.end && wn_wire_next(&r, &f)) {
    if (f.number == 2) trainer = f;
    if (f.number == 3) spm_rules(spm, &f);
    if (f.number != 1) continue;
    spm_take(spm, id, &f, &used);
    const struct wn_spm_piece *p = &spm->pieces[id];
    const uint32_t slot = spm_slot(spm, spm->texts + p->at, p->bytes);
    if (spm->slots[slot] >= 0)
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: pieces %d and %d are the same", name, spm->slots[slot], id);
    spm->slots[slot] = id;
    if (p->type == WN_PIECE_USER_DEFINED) {
      const wn_status status = wn_finder_add(&spm->symbols, spm->texts + p->at, p->bytes, id, false);
      if (status != WN_OK) return wn_fail(ctx, status, "out of memory: a tokenizer");
    }
    unknowns += p->type == WN_PIECE_UNKNOWN;
    in_bytes += p->type == WN_PIECE_BYTE;
    id++;
  }
  const wn_status built = wn_finder_finish(&spm->symbols);
  if (built != WN_OK) return wn_fail(ctx, built, "out of memory: a tokenizer");
  if (unknowns != 1)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: %d pieces stand for unknown text, expected one", name, unknowns);
  if (in_bytes != (spm->info.byte_fallback ? 256 : 0))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: %d pieces stand for bytes, expected %d", name, in_bytes,
                   spm->info.byte_fallback ? 256 : 0);
  const struct special s = spm_special(&trainer);
  spm->bos = spm_find(spm, (const char *)s.bos.data, s.bos.bytes);
  spm->eos = spm_find(spm, (const char *)s.eos.data, s.eos.bytes);
  spm->unknown = spm_find(spm, (const char *)s.unknown.data, s.unknown.bytes);
  if (spm->bos >= 0 && spm->pieces[spm->bos].type != WN_PIECE_CONTROL) spm->bos = -1;
  if (spm->eos >= 0 && spm->pieces[spm->eos].type != WN_PIECE_CONTROL) spm->eos = -1;
  for (id = 0; id < spm->count && spm->unknown < 0; id++)
    if (spm->pieces[id].type == WN_PIECE_UNKNOWN) spm->unknown = id;
  return WN_OK;
}

wn_status wn_spm_create(wn_context *ctx, const char *name, const void *model, size_t bytes,
                        const struct wn_spm_info *info, struct wn_spm **out) {
  size_t slots = 64;
  WN_TRY(WN_ALLOC(ctx, "tokenizer", 1, out));
  struct wn_spm *spm = *out;
  *spm = (struct wn_spm){.info = *info, .count = info->pieces, .bos = -1, .eos = -1, .unknown = -1};
  while (slots < 2 * (size_t)info->pieces) slots *= 2;
  spm->mask = (uint32_t)slots - 1;
  wn_status status = WN_ALLOC(ctx, "tokenizer", info->pieces, &spm->pieces);
  if (status == WN_OK) status = WN_ALLOC(ctx, "tokenizer", slots, &spm->slots);
  /* the pieces' texts together are shorter than the file */
  if (status == WN_OK) status = WN_ALLOC(ctx, "tokenizer", bytes + 1, &spm->texts);
  if (status == WN_OK) {
    memset(spm->slots, 0xFF, slots * sizeof *spm->slots);
    status = spm_pieces(ctx, name, model, bytes, spm);
  }
  if (status == WN_OK) return WN_OK;
  wn_spm_destroy(spm);
  *out = NULL;
  return status;
}

void wn_spm_destroy(struct wn_spm *spm) {
  if (!spm) return;
  wn_free(spm->pieces);
  wn_free(spm->slots);
  wn_free(spm->texts);
  wn_finder_clear(&spm->symbols);
  wn_free(spm);
}

int32_t wn_spm_count(const struct wn_spm *spm) {
  return spm->count;
}
int32_t wn_spm_bos(const struct wn_spm *spm) {
  return spm->bos;
}
int32_t wn_spm_eos(const struct wn_spm *spm) {
  return spm->eos;
}
int32_t wn_spm_unknown(const struct wn_spm *spm) {
  return spm->unknown;
}

void wn_spm_symbols_begin(const struct wn_spm *spm, const char *text, size_t bytes, struct wn_finder_walk *walk) {
  wn_finder_begin(walk, &spm->symbols, &(struct wn_finder_text){.text = text, .bytes = bytes});
}

enum wn_spm_type wn_spm_piece(const struct wn_spm *spm, int32_t id, const char **text, size_t *bytes) {
  const struct wn_spm_piece *p = &spm->pieces[id];
  *text = spm->texts + p->at;
  *bytes = p->bytes;
  switch (p->type) {
  case WN_PIECE_CONTROL:
    return WN_SPM_CONTROL;
  case WN_PIECE_UNKNOWN:
    return WN_SPM_UNKNOWN;
  case WN_PIECE_BYTE:
    return WN_SPM_BYTE;
  default:
    return WN_SPM_TEXT;
  }
}
float wn_spm_score(const struct wn_spm *spm, int32_t id) {
  return spm->pieces[id].score;
}
bool wn_spm_unused(const struct wn_spm *spm, int32_t id) {
  return spm->pieces[id].type == WN_PIECE_UNUSED;
}
bool wn_spm_user_defined(const struct wn_spm *spm, int32_t id) {
  return spm->pieces[id].type == WN_PIECE_USER_DEFINED;
}
