// The kernels by name, for the twin: each takes its config from the head of its arguments.
#include <kernels/common/barrier.hpp>
#include <kernels/ep/combine.hpp>
#include <kernels/ep/combine_epilogue.hpp>
#include <kernels/ep/dispatch.hpp>
#include <kernels/ep/dispatch_epilogue.hpp>

namespace epsim {
namespace {

void barrier(gm<const BarrierArgs> args) {
  barrier_impl(args, read_struct<RuntimeConfig>(gm_field(args, &BarrierArgs::cfg)));
}
void dispatch(gm<const DispatchArgs> args) {
  ep::dispatch_impl(args, read_struct<RuntimeConfig>(gm_field(args, &DispatchArgs::cfg)));
}
void dispatch_epilogue(gm<const DispatchEpilogueArgs> args) {
  ep::dispatch_epilogue_impl(args, read_struct<RuntimeConfig>(gm_field(args, &DispatchEpilogueArgs::cfg)));
}
void combine(gm<const CombineArgs> args) {
  ep::combine_impl(args, read_struct<RuntimeConfig>(gm_field(args, &CombineArgs::cfg)));
}
void combine_epilogue(gm<const CombineEpilogueArgs> args) {
  ep::combine_epilogue_impl(args, read_struct<RuntimeConfig>(gm_field(args, &CombineEpilogueArgs::cfg)));
}

EPSIM_KERNEL(barrier, barrier);
EPSIM_KERNEL(dispatch, dispatch);
EPSIM_KERNEL(dispatch_epilogue, dispatch_epilogue);
EPSIM_KERNEL(combine, combine);
EPSIM_KERNEL(combine_epilogue, combine_epilogue);

}  // namespace
}  // namespace epsim
