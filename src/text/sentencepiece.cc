// SentencePiece (Kudo and Richardson, EMNLP 2018) behind the C interface of spm.h.
#include <sentencepiece_trainer.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <unordered_map>

#include "text/spm.h"

namespace sentencepiece {
namespace logging {
void SetMinLogLevel(int level); // exported by the library, but declared in no installed header
}
} // namespace sentencepiece

namespace {

// Messages look like "src/file.cc(12) [condition] sentence"; users get only the sentence.
void set_error(wn_spm_error *error, const char *text) {
  const char *sentence = std::strstr(text, "] ");
  if ((std::strncmp(text, "src/", 4) == 0 || std::strncmp(text, "./src/", 6) == 0) && sentence && sentence[2])
    text = sentence + 2;
  if (std::strstr(text, "!sentences_.empty()")) text = "no sentence in it that can be learned from";
  std::snprintf(error->text, sizeof error->text, "%s", text);
}

// Wraps every call into the library that can fail.
template <typename F> bool guarded(wn_spm_error *error, F call) {
  error->text[0] = 0;
  try {
    // The library logs to standard error by default; only fatal messages are left on.
    static std::once_flag quiet;
    std::call_once(quiet, [] { sentencepiece::logging::SetMinLogLevel(3); });
    const sentencepiece::util::Status status = call();
    if (status.ok()) return true;
    set_error(error, status.error_message()[0] ? status.error_message() : "SentencePiece failed");
  } catch (const std::exception &e) {
    set_error(error, e.what());
  } catch (...) {
    set_error(error, "SentencePiece failed");
  }
  return false;
}

// Passes on sentences from a C callback.
class Sentences : public sentencepiece::SentenceIterator {
public:
  explicit Sentences(const wn_spm_training &training) : training_(training) { Next(); }
  bool done() const override { return done_; }
  void Next() override {
    const char *text = nullptr;
    size_t bytes = 0;
    done_ = !training_.next(training_.user, &text, &bytes);
    if (!done_) value_.assign(text, bytes);
  }
  const std::string &value() const override { return value_; }
  sentencepiece::util::Status status() const override { return sentencepiece::util::Status(); }

private:
  const wn_spm_training &training_;
  std::string value_;
  bool done_ = false;
};

} // namespace

extern "C" {

bool wn_spm_train(const struct wn_spm_training *training, char **model, size_t *bytes, struct wn_spm_error *error) {
  *model = nullptr;
  *bytes = 0;
  std::string serialized;
  const bool ok = guarded(error, [&] {
    // Tokens must decode to the unchanged text: no normalisation, all spaces kept, newline is a symbol.
    const std::unordered_map<std::string, std::string> options = {
        {"model_type", training->kind},
        {"vocab_size", std::to_string(training->vocab_size)},
        {"character_coverage", std::to_string(training->coverage)},
        {"num_threads", std::to_string(training->threads)},
        {"byte_fallback", training->byte_fallback ? "true" : "false"},
        {"train_extremely_large_corpus", training->large ? "true" : "false"},
        {"normalization_rule_name", training->rule ? training->rule : "identity"},
        {"remove_extra_whitespaces", training->rule ? "true" : "false"},
        {"allow_whitespace_only_pieces", "true"},
        {"split_digits", "true"},
        {"user_defined_symbols", "\n"},
        {"required_chars", "\xE2\x96\x81"}, // the space must have a piece, however rare, or texts would not decode
                                            // unchanged
        {"max_sentence_length", "1000000"},
        {"unk_id", "0"},
        {"bos_id", "1"},
        {"eos_id", "2"},
        {"pad_id", "-1"},
        {"minloglevel", "3"},
    };
    Sentences sentences(*training);
    return sentencepiece::SentencePieceTrainer::Train(options, &sentences, &serialized);
  });
  if (!ok) return false;
  *model = static_cast<char *>(std::malloc(serialized.size() + 1));
  if (!*model) {
    set_error(error, "out of memory");
    return false;
  }
  std::memcpy(*model, serialized.data(), serialized.size());
  *bytes = serialized.size();
  return true;
}

void wn_spm_text_free(char *text) {
  std::free(text);
}

} // extern "C"
