"""The further models that algorithms use besides the policy: a reference model, a value model, a teacher."""
