#include "text/spm_oracle.h"

#include <sentencepiece_processor.h>

#include <string_view>
#include <vector>

struct spm_oracle {
  sentencepiece::SentencePieceProcessor processor;
  std::vector<int> ids;
};

struct spm_oracle *spm_oracle_create(const void *model, size_t bytes) {
  auto *oracle = new spm_oracle;
  if (oracle->processor.LoadFromSerializedProto(std::string_view(static_cast<const char *>(model), bytes)).ok())
    return oracle;
  delete oracle;
  return nullptr;
}

void spm_oracle_destroy(struct spm_oracle *oracle) {
  delete oracle;
}

const int32_t *spm_oracle_encode(struct spm_oracle *oracle, const char *text, size_t bytes, size_t *count) {
  if (!oracle->processor.Encode(std::string_view(text, bytes), &oracle->ids).ok()) oracle->ids.clear();
  *count = oracle->ids.size();
  return oracle->ids.data();
}
