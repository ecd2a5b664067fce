/* Normalises text for a SentencePiece model, like SentencePiece 0.1.97 (normalizer.cc). At each position the longest
 * user-defined symbol is kept unchanged; else the longest matching rule of the table is applied; else one character is
 * copied. Then, as far as the model asks for it: runs of spaces become one, spaces at both ends are removed, a space is
 * put before the text, and spaces become U+2581. Cost: O(text times the longest rule). */
#include <string.h>
#include "base/error.h"
#include "text/spm_inside.h"
#include "text/utf8.h"

/* The replacement at one position of the text, and how many bytes of the text it replaces. */
struct normal {
  const char *text;
  size_t bytes, used;
};

/* A text, and the search for user-defined symbols in it. */
struct normalized {
  const struct wn_spm *spm;
  const char *text;
  size_t bytes, at;
  struct wn_finder_walk symbols;
  struct wn_found symbol; /* the next one */
  bool more;              /* there is one */
};

/* What comes at n->at; the caller goes on behind it. */
static wn_status normalize_one(struct normalized *n, struct normal *out) {
  const struct wn_spm_trie *t = &n->spm->rules;
  const char *text = n->text + n->at;
  const size_t bytes = n->bytes - n->at;
  *out = (struct normal){0};
  if (n->more && n->symbol.at.begin < n->at) WN_TRY(wn_finder_next(&n->symbols, n->at, &n->more, &n->symbol));
  if (n->more && n->symbol.at.begin == n->at) {
    const size_t symbol = n->symbol.at.end - n->at;
    *out = (struct normal){text, symbol, symbol};
    return WN_OK;
  }
  if (t->count) {
    size_t node = 0;
    for (size_t i = 0; i < bytes; i++) {
      const unsigned char byte = (unsigned char)text[i];
      node = wn_spm_trie_block(t, node) ^ byte;
      if (byte == 0 || (wn_spm_trie_unit(t, node) & 0x800000FF) != byte) break;
      if (!(wn_spm_trie_unit(t, node) & 0x100)) continue;
      out->text = (const char *)t->text + (wn_spm_trie_unit(t, wn_spm_trie_block(t, node)) & 0x7FFFFFFF);
      out->used = i + 1;
    }
    if (out->used) out->bytes = strlen(out->text);
  }
  if (out->used) return WN_OK;
  const int length = wn_utf8_sequence(text, bytes);
  *out = (struct normal){text, (size_t)length, (size_t)length};
  if (length <= 0) *out = (struct normal){"\xEF\xBF\xBD", 3, 1};
  return WN_OK;
}

static wn_status normalize_put(const struct wn_spm *spm, const char *text, size_t bytes, struct wn_bytes *out) {
  return (spm->info.escape_whitespaces ? wn_mark_spaces : wn_bytes_add)(NULL, out, text, bytes);
}

static wn_status normalize_all(struct normalized *in, struct wn_bytes *out) {
  const struct wn_spm *spm = in->spm;
  const bool fewer = spm->info.remove_extra_whitespaces;
  const char *space = spm->info.escape_whitespaces ? WN_SPACE_MARK : " ";
  const size_t space_bytes = strlen(space);
  struct normal n;
  bool after_space = fewer;
  WN_TRY(wn_finder_next(&in->symbols, 0, &in->more, &in->symbol));
  for (; fewer && in->at < in->bytes; in->at += n.used) { /* spaces at the beginning */
    WN_TRY(normalize_one(in, &n));
    if (n.bytes != 1 || *n.text != ' ') break;
  }
  if (in->at == in->bytes) return WN_OK;
  if (spm->info.add_dummy_prefix) WN_TRY(wn_bytes_add(NULL, out, space, space_bytes));
  for (; in->at < in->bytes; in->at += n.used) {
    WN_TRY(normalize_one(in, &n));
    for (; after_space && n.bytes > 0 && *n.text == ' '; n.text++) n.bytes--;
    if (n.bytes > 0) {
      WN_TRY(normalize_put(spm, n.text, n.bytes, out));
      after_space = fewer && n.text[n.bytes - 1] == ' ';
    }
  }
  while (fewer && out->count >= space_bytes && !memcmp(out->data + out->count - space_bytes, space, space_bytes))
    out->count -= space_bytes;
  return WN_OK;
}

wn_status wn_spm_normalize(const struct wn_spm *spm, const char *text, size_t bytes, struct wn_bytes *out) {
  struct normalized in = {.spm = spm, .text = text, .bytes = bytes};
  if (bytes > 0 && !spm->info.remove_extra_whitespaces && spm->rules.count == 0) {
    if (spm->info.add_dummy_prefix) WN_TRY(normalize_put(spm, " ", 1, out));
    return normalize_put(spm, text, bytes, out);
  }
  wn_spm_symbols_begin(spm, text, bytes, &in.symbols);
  const wn_status status = normalize_all(&in, out);
  wn_bytes_clear(&in.symbols.matches);
  return status;
}
