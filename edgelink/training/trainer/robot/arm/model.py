"""The arm's physics and its reach task, by MuJoCo (extra ``arm``). Knows nothing of time of day, networks or Ray.

Three joints: the column turns, shoulder and elbow bend. Each has a speed servo; gravity is compensated, as the
controllers of real arms do. The task is to bring the finger tip to a point in space and to keep it there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]
else:
    Doubles = Any

JOINTS = 3
FEATURES = 4 * JOINTS  # angles (rad), speeds (rad/s), from finger tip to target (m), target (m)
TIMESTEP_S = 0.002
MAX_SPEED_RAD_S = 2.0  # at an action of 1
STEP_S = 0.02  # an action of the policy is in force so long
ATTEMPT_STEPS = 100
NEAR_M = 0.03  # from here on the target counts as reached

_XML = f"""
<mujoco model="edgelink-arm">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{TIMESTEP_S}" integrator="implicitfast"/>
  <default>
    <joint type="hinge" damping="0.2" armature="0.01"/>
    <geom type="capsule" size="0.025" density="600" contype="0" conaffinity="0"/>
    <velocity kv="4" ctrlrange="-{MAX_SPEED_RAD_S} {MAX_SPEED_RAD_S}" forcerange="-12 12"/>
  </default>
  <worldbody>
    <body name="column" gravcomp="1">
      <joint name="turn" axis="0 0 1" range="-2.9 2.9"/>
      <geom fromto="0 0 0 0 0 0.2"/>
      <body name="upper" pos="0 0 0.2" gravcomp="1">
        <joint name="shoulder" axis="0 1 0" range="-1.8 1.8"/>
        <geom fromto="0 0 0 0 0 0.2"/>
        <body name="fore" pos="0 0 0.2" gravcomp="1">
          <joint name="elbow" axis="0 1 0" range="-2.4 2.4"/>
          <geom fromto="0 0 0 0 0 0.2"/>
          <site name="tip" pos="0 0 0.2" size="0.01"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <velocity joint="turn"/><velocity joint="shoulder"/><velocity joint="elbow"/>
  </actuator>
</mujoco>
"""

_START_RAD = np.array([0.0, 0.6, 0.8])
_START_SPREAD_RAD = 0.2
# Targets are where the tip of an arm with such angles is: all can be reached, none is inside the column.
_TARGET_LOW_RAD, _TARGET_HIGH_RAD = np.array([-1.2, 0.3, 0.3]), np.array([1.2, 1.2, 1.4])


class ArmModel:
    """One arm. Actions are joint speeds, as shares (−1 to 1) of :data:`MAX_SPEED_RAD_S`."""

    def __init__(self) -> None:
        import mujoco

        self._mujoco = mujoco
        self._model = mujoco.MjModel.from_xml_string(_XML)
        self._data = mujoco.MjData(self._model)
        self._tip = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_SITE, "tip")
        self.target_m: Doubles = np.zeros(3)
        self.place(_START_RAD)

    @property
    def angles_rad(self) -> Doubles:
        result: Doubles = self._data.qpos
        return result

    @property
    def tip_m(self) -> Doubles:
        """Where the finger tip is."""
        result: Doubles = self._data.site_xpos[self._tip]
        return result

    @property
    def distance_m(self) -> float:
        """From finger tip to target."""
        return float(np.linalg.norm(self.tip_m - self.target_m))

    def place(self, angles_rad: Doubles) -> None:
        """Put the arm there, at rest."""
        self._mujoco.mj_resetData(self._model, self._data)
        self._data.qpos[:] = angles_rad
        self._mujoco.mj_forward(self._model, self._data)

    def begin(self, generator: np.random.Generator) -> None:
        """A new attempt: another target, the arm near its start."""
        self.place(generator.uniform(_TARGET_LOW_RAD, _TARGET_HIGH_RAD))
        self.target_m = self.tip_m.copy()
        self.place(_START_RAD + generator.uniform(-_START_SPREAD_RAD, _START_SPREAD_RAD, JOINTS))

    def restore(self, observation: Any) -> None:
        """The state that was observed so: from there the same actions lead to the same observations."""
        self.place(observation[:JOINTS])
        self._data.qvel[:] = observation[JOINTS : 2 * JOINTS]
        self.target_m = np.asarray(observation[3 * JOINTS :], np.float64)
        self._mujoco.mj_forward(self._model, self._data)

    def advance(self, actions: Any, steps: int) -> None:
        """Drive the joints by ``actions`` for ``steps`` timesteps."""
        self._data.ctrl[:] = np.clip(actions, -1.0, 1.0) * MAX_SPEED_RAD_S
        self._mujoco.mj_step(self._model, self._data, steps)

    def observation(self) -> NDArray[np.float32]:
        """What the sensors say; :data:`FEATURES` numbers."""
        data = self._data
        return np.concatenate([data.qpos, data.qvel, self.target_m - self.tip_m, self.target_m]).astype(np.float32)


def reward(distance_m: float, actions: Any) -> float:
    """Of one step: nearer is better, on the target best, and effort costs a little."""
    effort = float(np.square(np.clip(actions, -1.0, 1.0)).sum())
    return -distance_m + (0.5 if distance_m < NEAR_M else 0.0) - 0.01 * effort
