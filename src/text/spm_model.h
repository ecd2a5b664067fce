/* The pieces of a SentencePiece model: what decoding and our encoders need. */
#ifndef WN_TEXT_SPM_MODEL_H
#define WN_TEXT_SPM_MODEL_H

#include "text/normalize.h"
#include "text/spm_check.h"

struct wn_spm; /* several threads may read it */
/* The bytes must have passed wn_spm_check, whose info is used; they stay the caller's and must not move. WN_ERR_FORMAT:
 * two pieces with the same text, no unknown piece or several, byte pieces without byte_fallback or the reverse. */
wn_status wn_spm_create(wn_context *ctx, const char *name, const void *model, size_t bytes,
                        const struct wn_spm_info *info, struct wn_spm **out);
void wn_spm_destroy(struct wn_spm *spm); /* NULL is allowed */

int32_t wn_spm_count(const struct wn_spm *spm);
int32_t wn_spm_bos(const struct wn_spm *spm); /* -1: none */
int32_t wn_spm_eos(const struct wn_spm *spm);
int32_t wn_spm_unknown(const struct wn_spm *spm);
enum wn_spm_type { WN_SPM_TEXT, WN_SPM_CONTROL, WN_SPM_UNKNOWN, WN_SPM_BYTE };
/* The type of piece id (0..count-1) and its text (owned by spm, NUL-terminated), with U+2581 for a space. */
enum wn_spm_type wn_spm_piece(const struct wn_spm *spm, int32_t id, const char **text, size_t *bytes);
float wn_spm_score(const struct wn_spm *spm, int32_t id);
bool wn_spm_unused(const struct wn_spm *spm, int32_t id); /* a text piece that encoding never gives */
bool wn_spm_user_defined(const struct wn_spm *spm, int32_t id);

/* Begins a search for the model's user-defined symbols. */
struct wn_finder_walk;
void wn_spm_symbols_begin(const struct wn_spm *spm, const char *text, size_t bytes, struct wn_finder_walk *walk);

/* Normalises a text as the model asks (spm_normalize.c): the rules of its table, and spaces. */
wn_status wn_spm_normalize(const struct wn_spm *spm, const char *text, size_t bytes, struct wn_bytes *out);

#endif
