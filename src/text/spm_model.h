/* The pieces of a SentencePiece model, read from its file: what decoding and our own encoding need. */
#ifndef WN_TEXT_SPM_MODEL_H
#define WN_TEXT_SPM_MODEL_H

#include "text/normalize.h"
#include "text/spm_check.h"

struct wn_spm; /* reading it from many threads is safe */
/* The bytes, which stay the caller's and in place, have passed wn_spm_check, whose info is read. WN_ERR_FORMAT: two
 * pieces with the same text, no piece or several for the unknown, bytes without byte_fallback or the other way round.
 */
wn_status wn_spm_create(wn_context *ctx, const char *name, const void *model, size_t bytes,
                        const struct wn_spm_info *info, struct wn_spm **out);
void wn_spm_destroy(struct wn_spm *spm); /* NULL is allowed */

int32_t wn_spm_count(const struct wn_spm *spm);
int32_t wn_spm_bos(const struct wn_spm *spm); /* -1: none */
int32_t wn_spm_eos(const struct wn_spm *spm);
int32_t wn_spm_unknown(const struct wn_spm *spm);
enum wn_spm_type { WN_SPM_TEXT, WN_SPM_CONTROL, WN_SPM_UNKNOWN, WN_SPM_BYTE };
/* Piece id in 0..count-1: its type and its text (owned by spm, NUL-terminated), U+2581 for a space. */
enum wn_spm_type wn_spm_piece(const struct wn_spm *spm, int32_t id, const char **text, size_t *bytes);
float wn_spm_score(const struct wn_spm *spm, int32_t id);
bool wn_spm_unused(const struct wn_spm *spm, int32_t id); /* a text piece that encoding never gives */
bool wn_spm_user_defined(const struct wn_spm *spm, int32_t id);

/* What the model makes of a text before it looks for pieces (spm_normalize.c): rules of its table, spaces as it wants
 * them. */
wn_status wn_spm_normalize(const struct wn_spm *spm, const char *text, size_t bytes, struct wn_bytes *out);

#endif
