// The kernels of the device: one template each, whose parameters are the fields of the config in their order.
#pragma once

#include <kernels/common/barrier.hpp>
#include <kernels/ep/combine.hpp>
#include <kernels/ep/combine_epilogue.hpp>
#include <kernels/ep/dispatch.hpp>
#include <kernels/ep/dispatch_epilogue.hpp>

namespace epsim::device {

template <uint64_t... kValues>
__global__ __vector__ void barrier(gm<const BarrierArgs> args) {
  barrier_impl(args, StaticConfig<kValues...>{});
}
template <uint64_t... kValues>
__global__ __vector__ void dispatch(gm<const DispatchArgs> args) {
  ep::dispatch_impl(args, StaticConfig<kValues...>{});
}
template <uint64_t... kValues>
__global__ __vector__ void dispatch_epilogue(gm<const DispatchEpilogueArgs> args) {
  ep::dispatch_epilogue_impl(args, StaticConfig<kValues...>{});
}
template <uint64_t... kValues>
__global__ __vector__ void combine(gm<const CombineArgs> args) {
  ep::combine_impl(args, StaticConfig<kValues...>{});
}
template <uint64_t... kValues>
__global__ __vector__ void combine_epilogue(gm<const CombineEpilogueArgs> args) {
  ep::combine_epilogue_impl(args, StaticConfig<kValues...>{});
}

}  // namespace epsim::device
