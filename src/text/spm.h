/* SentencePiece behind a small C interface: training, and encoding of texts that our own encoders do not take. In a
 * build without it (spm_none.c) there is no encoder: our own take all texts, and training fails with a message. Errors
 * are returned as text; nothing is printed, no exception escapes. */
#ifndef WN_TEXT_SPM_H
#define WN_TEXT_SPM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The error message, cut to fit; "" if there was no error. */
struct wn_spm_error {
  char text[512];
};

struct wn_spm_encoder; /* a loaded model; several threads may use it */
/* The bytes must have passed wn_spm_check; they are not needed afterwards. NULL on failure. */
struct wn_spm_encoder *wn_spm_encoder_create(const void *model, size_t bytes, struct wn_spm_error *error);
void wn_spm_encoder_destroy(struct wn_spm_encoder *spm);

/* The ids of one call, reused by the next. */
struct wn_spm_ids;
struct wn_spm_ids *wn_spm_ids_create(void); /* NULL: out of memory */
void wn_spm_ids_destroy(struct wn_spm_ids *ids);
const int32_t *wn_spm_ids_data(const struct wn_spm_ids *ids);
size_t wn_spm_ids_count(const struct wn_spm_ids *ids);
/* Replaces the contents of ids by those of text. */
bool wn_spm_encode(const struct wn_spm_encoder *spm, const char *text, size_t bytes, struct wn_spm_ids *ids,
                   struct wn_spm_error *error);

/* Training. `next` returns one sentence per call (borrowed until the next call), and false at the end. */
struct wn_spm_training {
  const char *kind; /* "unigram", "bpe" */
  int vocab_size, threads;
  double coverage;
  bool byte_fallback, large; /* large: more than a gigabyte of text */
  const char *rule;          /* normalisation: "nmt_nfkc", which also removes extra spaces; NULL: none */
  bool (*next)(void *user, const char **text, size_t *bytes);
  void *user;
};
/* *model: the serialized model; free it with wn_spm_text_free. */
bool wn_spm_train(const struct wn_spm_training *training, char **model, size_t *bytes, struct wn_spm_error *error);
void wn_spm_text_free(char *text);

#ifdef __cplusplus
}
#endif
#endif
