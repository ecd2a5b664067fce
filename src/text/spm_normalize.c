/* Normalises text for a SentencePiece model, like SentencePiece 0.1.97 (normalizer.cc). At each position the longest
 * user-defined symbol is kept unchanged; else the longest matching rule of the table is applied; else one character is
 * copied. Then, as far as the model asks for it: runs of spaces become one, spaces at both ends are removed, a space is
 * put before the text, and spaces become U+2581. Cost: O(text times the longest rule). */
#include <string.h>
#include "base/error.h"
#include "text/spm_inside.h"
#include "text/utf8.h"

static const char normalize_mark[] = "\xE2\x96\x81"; /* U+2581 */

/* The replacement at one position of the text, and how many bytes of the text it replaces. */
struct normal {
  const char *text;
  size_t bytes, used;
};

/* Bytes of the longest user-defined symbol at the beginning of the text; 0: none. */
static size_t normalize_symbol(const struct wn_spm *spm, const char *text, size_t bytes) {
  if (!spm->symbol_begins[(unsigned char)*text]) return 0;
  for (size_t n = bytes < spm->longest_symbol ? bytes : spm->longest_symbol; n > 0; n--) {
    const int32_t id = wn_spm_find(spm, text, n);
    if (id >= 0 && wn_spm_user_defined(spm, id)) return n;
  }
  return 0;
}

static struct normal normalize_one(const struct wn_spm *spm, const char *text, size_t bytes) {
  const struct wn_spm_trie *t = &spm->rules;
  const size_t symbol = normalize_symbol(spm, text, bytes);
  struct normal n = {0};
  if (symbol) return (struct normal){text, symbol, symbol};
  if (t->count) {
    size_t node = 0;
    for (size_t i = 0; i < bytes; i++) {
      const unsigned char byte = (unsigned char)text[i];
      node = wn_spm_trie_block(t, node) ^ byte;
      if (byte == 0 || (wn_spm_trie_unit(t, node) & 0x800000FF) != byte) break;
      if (!(wn_spm_trie_unit(t, node) & 0x100)) continue;
      n.text = (const char *)t->text + (wn_spm_trie_unit(t, wn_spm_trie_block(t, node)) & 0x7FFFFFFF);
      n.used = i + 1;
    }
    if (n.used) n.bytes = strlen(n.text);
  }
  if (n.used) return n;
  const int length = wn_utf8_sequence(text, bytes);
  if (length <= 0) return (struct normal){"\xEF\xBF\xBD", 3, 1};
  return (struct normal){text, (size_t)length, (size_t)length};
}

static wn_status normalize_put(const struct wn_spm *spm, const char *text, size_t bytes, struct wn_bytes *out) {
  while (bytes > 0) {
    const char *space = spm->info.escape_whitespaces ? memchr(text, ' ', bytes) : NULL;
    const size_t n = space ? (size_t)(space - text) : bytes;
    WN_TRY(wn_bytes_add(NULL, out, text, n));
    if (space) WN_TRY(wn_bytes_add(NULL, out, normalize_mark, 3));
    text += n + (space != NULL);
    bytes -= n + (space != NULL);
  }
  return WN_OK;
}

wn_status wn_spm_normalize(const struct wn_spm *spm, const char *text, size_t bytes, struct wn_bytes *out) {
  const bool fewer = spm->info.remove_extra_whitespaces;
  const char *space = spm->info.escape_whitespaces ? normalize_mark : " ";
  const size_t space_bytes = strlen(space);
  bool after_space = fewer;
  while (fewer && bytes > 0) { /* spaces at the beginning */
    const struct normal n = normalize_one(spm, text, bytes);
    if (n.bytes != 1 || *n.text != ' ') break;
    text += n.used, bytes -= n.used;
  }
  if (bytes == 0) return WN_OK;
  if (spm->info.add_dummy_prefix) WN_TRY(wn_bytes_add(NULL, out, space, space_bytes));
  if (!fewer && spm->rules.count == 0) return normalize_put(spm, text, bytes, out);
  while (bytes > 0) {
    struct normal n = normalize_one(spm, text, bytes);
    text += n.used, bytes -= n.used;
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
