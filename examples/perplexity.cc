// perplexity MODEL FILE [BUDGETS]: of a text, in pieces as long as the model's context; with BUDGETS (64, or what
// --budgets takes) each layer holds no more tokens than that. C++ needs no wrapper: a deleter for each handle.
#include <winnow/winnow.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

struct Free {
  void operator()(wn_context *p) const { wn_context_destroy(p); }
  void operator()(wn_model *p) const { wn_model_destroy(p); }
  void operator()(wn_tokenizer *p) const { wn_tokenizer_destroy(p); }
  void operator()(wn_session *p) const { wn_session_destroy(p); }
};
template <typename T> using Owned = std::unique_ptr<T, Free>;

struct Budgets : wn_budgets {
  explicit Budgets(const wn_model_config *config) { wn_budgets_init(this, &config->attention); }
  ~Budgets() { wn_budgets_clear(this); }
  Budgets(const Budgets &) = delete;
  Budgets &operator=(const Budgets &) = delete;
};

static void must(const Owned<wn_context> &ctx, wn_status status) {
  if (status != WN_OK) throw std::runtime_error(wn_context_error(ctx.get()));
}

static double perplexity(const char *path, const std::string &text, const char *kept) {
  wn_context *context = nullptr;
  if (wn_context_create(nullptr, &context) != WN_OK) throw std::runtime_error("no context");
  Owned<wn_context> ctx(context);
  wn_model *m = nullptr;
  must(ctx, wn_model_load(ctx.get(), path, nullptr, &m));
  Owned<wn_model> model(m);
  wn_tokenizer *t = nullptr;
  must(ctx, wn_tokenizer_load(ctx.get(), path, &t));
  Owned<wn_tokenizer> tok(t);
  const wn_model_config *config = wn_model_config_get(model.get());

  int32_t *encoded = nullptr;
  size_t count = 0;
  must(ctx, wn_tokenizer_encode(ctx.get(), tok.get(), text.data(), text.size(), false, false, &encoded, &count));
  const std::vector<int32_t> ids(encoded, encoded + count);
  wn_tokens_free(encoded);

  Budgets budgets(config);
  must(ctx, wn_policy_find(ctx.get(), "streaming", &budgets.policy));
  if (kept) must(ctx, wn_budgets_parse(ctx.get(), config, kept, &budgets));
  wn_session_options options{};
  options.size = sizeof options;
  options.sequences = 1;
  options.budgets = kept ? &budgets : nullptr;
  wn_session *s = nullptr;
  must(ctx, wn_session_create(ctx.get(), model.get(), &options, &s));
  Owned<wn_session> session(s);

  double sum = 0;
  size_t scored = 0;
  for (size_t at = 0; at + 1 < ids.size();) {
    const size_t n = std::min<size_t>(static_cast<size_t>(config->context), ids.size() - 1 - at);
    std::vector<double> log_probability(n);
    wn_scores scores{};
    scores.size = sizeof scores;
    scores.log_probability = log_probability.data();
    wn_session_reset(session.get());
    must(ctx, wn_session_score(ctx.get(), session.get(), &ids[at], &ids[at + 1], static_cast<int64_t>(n), &scores));
    for (double x : log_probability) sum -= x;
    scored += n, at += n;
  }
  if (scored == 0) throw std::runtime_error("the text has fewer than two tokens");
  return std::exp(sum / static_cast<double>(scored));
}

int main(int argc, char **argv) {
  if (argc < 3 || argc > 4) return std::fprintf(stderr, "usage: %s MODEL FILE [BUDGETS]\n", argv[0]), 2;
  std::ifstream file(argv[2], std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  try {
    std::printf("%.6g\n", perplexity(argv[1], text.str(), argc > 3 ? argv[3] : nullptr));
  } catch (const std::exception &error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
