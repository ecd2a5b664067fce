/* SentencePiece's own encoder, which winnow's are compared with. */
#ifndef WN_TEST_SPM_ORACLE_H
#define WN_TEST_SPM_ORACLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct spm_oracle;
struct spm_oracle *spm_oracle_create(const void *model, size_t bytes); /* NULL: it refuses the model */
void spm_oracle_destroy(struct spm_oracle *oracle);
/* The ids of a text, valid until the next call. */
const int32_t *spm_oracle_encode(struct spm_oracle *oracle, const char *text, size_t bytes, size_t *count);

#ifdef __cplusplus
}
#endif

#endif
