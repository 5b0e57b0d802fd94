// Applies a rule to rows: the same struct as on the host, with the values for this step.
#pragma once

#include "core/gpu/kernels/update.h"
#include "core/rules/rules.h"

namespace sok::gpu {

template <typename Rule>
struct RuleUpdate {
  UpdateArguments step;
  Rule rule;
};

SOK_DEVICE float Clip(float x, float most) { return x > most ? most : x < -most ? -most : x; }

SOK_DEVICE void CountUpdate(const UpdateArguments& step, uint32_t row) {
  Meta& meta = step.metas[row];
  meta.update_num += meta.update_num != 0xffffffffu;
  meta.update_time = step.now;
}

template <typename Rule, size_t... kSlot>
SOK_DEVICE void UpdatePiece(const UpdateArguments& step, const Rule& rule, uint64_t u, int piece,
                            std::index_sequence<kSlot...>) {
  constexpr int kSlots = static_cast<int>(sizeof...(kSlot));
  const int pieces = PiecesOf(step.rows.dim);
  const uint32_t row = step.keys[step.gradients.starts[u]];
  Piece* const at = PieceAt(step.rows, row, piece);
  // The embedding, then the slots.
  Piece parts[1 + kSlots];
  SOK_UNROLL
  for (int k = 0; k <= kSlots; ++k) parts[k] = at[k * pieces];
  const Piece sum = SumSegment(step.gradients, u, piece);
  SOK_UNROLL
  for (int k = 0; k < kPiece; ++k) {
    float g = sum.x[k] * step.scale;
    if (step.clip_value > 0.0f) g = Clip(g, step.clip_value);
    float& w = parts[0].x[k];
    if (step.weight_decay != 0.0f) w -= w * step.weight_decay * step.learning_rate;
    rule.Element(g, w, parts[1 + kSlot].x[k]...);
  }
  SOK_UNROLL
  for (int k = 0; k <= kSlots; ++k) at[k * pieces] = parts[k];
  if (piece == 0) CountUpdate(step, row);
}

template <typename Rule, typename = void>
struct Update {
  static SOK_DEVICE void Run(const RuleUpdate<Rule>& a) {
    const int pieces = PiecesOf(a.step.rows.dim);
    const uint64_t items = static_cast<uint64_t>(*a.step.gradients.segments) * pieces;
    for (uint64_t i = FirstItem(); i < items; i += ItemStep()) {
      UpdatePiece(a.step, a.rule, i / pieces, static_cast<int>(i % pieces),
                  std::make_index_sequence<Rule::kSlots>());
    }
  }
};

// Applies a rule that needs the whole row. StoreSums has already summed the gradients.
template <typename Rule>
struct Update<Rule, std::void_t<decltype(&Rule::Row)>> {
  static SOK_DEVICE void Run(const RuleUpdate<Rule>& a) {
    const UpdateArguments& step = a.step;
    const int dim = DimOf(step.rows.dim);
    const uint32_t segments = *step.gradients.segments;
    for (uint64_t u = FirstItem(); u < segments; u += ItemStep()) {
      const uint32_t row = step.keys[step.gradients.starts[u]];
      float* const w = RowAt(step.rows, row);
      float* const g = const_cast<float*>(step.sums) + u * dim;
      float scale = step.scale;
      if (step.clip_value > 0.0f) {
        for (int j = 0; j < dim; ++j) g[j] = Clip(g[j] * scale, step.clip_value);
        scale = 1.0f;
      }
      if (step.weight_decay != 0.0f) {
        for (int j = 0; j < dim; ++j) w[j] -= w[j] * step.weight_decay * step.learning_rate;
      }
      a.rule.Row(g, scale, w, dim);
      CountUpdate(step, row);
    }
  }
};

}  // namespace sok::gpu

#ifdef SOK_RULE
SOK_KERNEL(UpdateRows, sok::gpu::RuleUpdate<SOK_RULE>) { sok::gpu::Update<SOK_RULE>::Run(a); }
#endif
