/* SentencePiece's training behind a small C interface; models are read and texts encoded by our own code (spm_model.h,
 * pieces.h). In a build without it (spm_none.c) training fails with a message. Errors are returned as text; nothing is
 * printed, no exception escapes. */
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
