"""The models that algorithms need beside the policy: a reference model, a value model, a teacher."""
