"""`PPBuffer`: tensors between ring neighbours, a bounded number in flight in each direction.

R ranks in a ring, region 1 of a rank for what its previous rank sends, region 0 for its next one.
Source: deepep-ascend.md sections 1.11 and 4.7.
"""

from typing import Any, TypeVar

import numpy as np
import torch

from epsim.deep_ep.arrays import array_of
from epsim.deep_ep.base import BufferBase
from epsim.deep_ep.comm import barrier, get_comm_stream, get_logical_domain_size, get_physical_domain_size
from epsim.deep_ep.device import get_num_vec_cores
from epsim.deep_ep.errors import HostCheckError, RefusedError, UnsupportedError, raised_as
from epsim.deep_ep.exchange import Bytes
from epsim.deep_ep.lanes import Inbox, Outbox
from epsim.deep_ep.meeting import group_of, telling_peers
from epsim.deep_ep.tensor_checks import check_num_sms, check_tensor
from epsim.deep_ep.turns import one_at_a_time
from reference.collectives.pipeline import MAX_SLOT_BYTES, TO_NEXT, TO_PREVIOUS, pipeline_buffer_bytes
from reference.memory.sizes import RECORD_ALIGN_BYTES, align

Lane = TypeVar("Lane", Outbox, Inbox)
SEND_REGIONS = 2
"""Regions 2 and 3 hold what is sent; upstream's Ascend edition allocates them too and leaves them unused."""


class PPBuffer(BufferBase):
    """Send and receive between neighbours of a ring.

    In a ring of two ranks, previous and next are one rank, and all tensors to it form one order.

    Args:
      group: at least 2 ranks.
      num_max_tensor_bytes: largest tensor, at least 1.
      num_max_inflight_tensors: tensors that may be sent and not yet received, in each direction.
      sl_idx: must be None.
      num_gpu_timeout_secs: longest wait of a send or a receive.
      explicitly_destroy: see `BufferBase`.
      use_huge1g_page: accepted and ignored.

    Attributes:
      storage: [num_bytes] uint8, four regions of padded slots, of which a receive uses its own.

    Raises:
      UnsupportedError: sl_idx is given.
      RefusedError: a size or the timeout is not positive, a padded tensor exceeds 2^32 - 1 bytes, or the
        ring has one rank.
      RankMismatchError, PeerRefusedError: sizes differ between ranks, or another rank's are refused.
    """

    barrier = barrier
    get_comm_stream = get_comm_stream
    get_physical_domain_size = get_physical_domain_size
    get_logical_domain_size = get_logical_domain_size

    def __init__(
        self,
        group: Any,  # noqa: ANN401 - torch's type
        num_max_tensor_bytes: int,
        num_max_inflight_tensors: int,
        sl_idx: int | None = None,
        num_gpu_timeout_secs: float = 100,
        explicitly_destroy: bool = False,
        *,
        use_huge1g_page: bool = True,
    ) -> None:
        """Allocate the regions; collective."""
        del use_huge1g_page
        with telling_peers(group_of(group)):
            if sl_idx is not None:
                raise UnsupportedError("sl_idx", sl_idx, "service levels are not supported")
            with raised_as(RefusedError):
                num_bytes = pipeline_buffer_bytes(num_max_tensor_bytes, num_max_inflight_tensors)
        super().__init__(
            group,
            timeout_secs=num_gpu_timeout_secs,
            explicitly_destroy=explicitly_destroy,
            num_bytes=num_bytes,
        )
        self.num_max_tensor_bytes = num_max_tensor_bytes
        self.num_max_inflight_tensors = num_max_inflight_tensors
        with self.exchange.telling("PPBuffer"):
            if self.num_ranks < 2:
                raise RefusedError("group", "1 rank", "a ring has at least 2 ranks")
            self.storage = torch.zeros(num_bytes, dtype=torch.uint8)
        self.exchange.agree(
            "PPBuffer",
            same={
                "num_max_tensor_bytes": num_max_tensor_bytes,
                "num_max_inflight_tensors": num_max_inflight_tensors,
            },
        )
        self._connect()

    def _connect(self) -> None:
        """Make the lanes; a lane's number is the receiver's region, which tells the two ways apart."""
        slot = align(self.num_max_tensor_bytes, RECORD_ALIGN_BYTES)
        assert slot <= MAX_SLOT_BYTES, f"the size check let {slot} through"
        used = array_of(self.storage)[: 4 * self.num_max_inflight_tensors * slot]
        regions = used.reshape(4, self.num_max_inflight_tensors, slot)
        ways = {self.next_rank_idx: TO_NEXT}
        if self.num_ranks > 2:
            ways[self.previous_rank_idx] = TO_PREVIOUS
        self._outboxes, self._inboxes = {}, {}
        for peer, way in ways.items():
            self._outboxes[peer] = Outbox(self.exchange, peer, way, regions[SEND_REGIONS + way])
            # What the next rank sends to its previous one goes TO_PREVIOUS; two ranks know one way only.
            back = TO_NEXT if self.num_ranks == 2 else 1 - way
            self._inboxes[peer] = Inbox(self.exchange, peer, back, regions[back])

    @property
    def previous_rank_idx(self) -> int:
        """Rank before this one in the ring."""
        return int((self.rank_idx - 1) % self.num_ranks)

    @property
    def next_rank_idx(self) -> int:
        """Rank after this one in the ring."""
        return int((self.rank_idx + 1) % self.num_ranks)

    @one_at_a_time
    def send(self, x: torch.Tensor, dst_rank_idx: int, num_sms: int | None = None) -> None:
        """Send a tensor to a neighbour; returns when a slot was free and x may be written again.

        Args:
          x: contiguous, 1 to num_max_tensor_bytes bytes, any dtype and shape; neither is transmitted.
          dst_rank_idx: previous or next rank.
          num_sms: vector cores, None or 0 = all; otherwise without meaning.

        Raises:
          HostCheckError: another rank, a tensor that does not fit, or more cores than there are.
          PeerLostError: the neighbour received nothing within the time limit, or is gone.
        """
        check_num_sms(num_sms or 0, get_num_vec_cores())
        data = self._bytes_of(x)
        self._lane("dst_rank_idx", self._outboxes, dst_rank_idx).send(data)

    @one_at_a_time
    def recv(self, x: torch.Tensor, src_rank_idx: int, num_sms: int | None = None) -> None:
        """Receive the next tensor of a neighbour.

        Args:
          x: contiguous, of as many bytes as were sent. Written.
          src_rank_idx: previous or next rank.
          num_sms: vector cores, None or 0 = all; otherwise without meaning.

        Raises:
          HostCheckError: another rank, a tensor that does not fit the buffer, or more cores than there are.
          UndefinedError: another number of bytes was sent, which upstream does not notice.
          PeerLostError: the neighbour sent nothing within the time limit, or is gone.
        """
        check_num_sms(num_sms or 0, get_num_vec_cores())
        data = self._bytes_of(x)
        self._lane("src_rank_idx", self._inboxes, src_rank_idx).receive(data)

    def _lane(self, field: str, lanes: dict[int, Lane], peer: int) -> Lane:
        if not isinstance(peer, int | np.integer) or peer not in lanes:
            known = " or ".join(str(rank) for rank in sorted(lanes))
            raise HostCheckError(field, peer, f"must be a neighbour of rank {self.rank_idx}, {known}")
        return lanes[peer]

    def _bytes_of(self, x: torch.Tensor) -> Bytes:
        check_tensor("x", x, dim=None, dtype=None)
        if not 0 < x.nbytes <= self.num_max_tensor_bytes:
            rule = f"must have 1 to num_max_tensor_bytes {self.num_max_tensor_bytes} bytes"
            raise HostCheckError("x", f"{x.nbytes} bytes", rule)
        with raised_as(HostCheckError):
            return array_of(x).reshape(-1).view(np.uint8)
